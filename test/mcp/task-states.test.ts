import assert from 'node:assert/strict'
import { longWork } from '#core/api/long-work.ts'
import { failRun } from '#evaluation/eval-runs/settle-run.ts'
import { step } from '../automation/orchestration-support.ts'
import { upload } from '../content/ingestion-support.ts'
import { item } from '../evaluation/support.ts'
import { QUESTIONS, TOOL_ANSWERS, toolAt } from '../execution/decider-support.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { startTarget } from '../execution/tool-target.ts'
import { type Client, eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { tools, wire, withForms, withTasks } from './support.ts'

const CONCERNS = ['generation', 'orchestration', 'evaluation', 'ingestion']

const manual = { key: 'check', title: 'Check it', type: 'manual' }

/** The states of tasks over everything that is long work, from what a client sees of them. */
describe('states of tasks', function () {
  this.timeout(120_000)
  let app: AgentApp
  const target = forSuite(startTarget)
  let worker: Awaited<ReturnType<typeof runWorker>>
  before(async () => {
    target.answer = ({ url }, response) =>
      response
        .writeHead(url.startsWith('/fails') ? 400 : 200, { 'content-type': 'application/json' })
        .end(JSON.stringify(TOOL_ANSWERS))
    // All work waits at first: there is no worker.
    app = await startAgentApp({ workers: [], env: { MCP_TASK_AFTER_MS: '100', EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
  })
  after(async () => {
    await worker?.stop()
    await app?.close()
  })

  const made = (path: string, body: object): Promise<any> => postedBy(app.key, path, body)
  const aCase = async () => (await made('/cases', { title: 'A claim' })).id as string
  const playbook = async (...steps: object[]) => ({
    case_id: await aCase(),
    playbook_id: (await made('/playbooks', { name: `playbook ${++counter}`, steps })).id as string,
  })
  let counter = 0
  const graph = async (...nodes: object[]) => ({
    orchestration_id: (await made('/orchestrations', { name: `graph ${++counter}`, nodes, edges: [] })).id as string,
  })
  const asked = async (path: string) => {
    const tool_id = await toolAt(app.key, `${target.url}${path}`, { name: `tool_${++counter}` })
    return { tool_id, questions: QUESTIONS, input: 'Where is my money?' }
  }
  const evaluated = async () => {
    const dataset = await made('/datasets', { name: `set ${++counter}` })
    await made(`/datasets/${dataset.id}/items`, item('a', 'Yes'))
    const scorers = [{ type: 'exact_match' }]
    const { id } = await made('/evals', {
      name: `eval ${++counter}`,
      agent_id: app.agentId,
      dataset_id: dataset.id,
      scorers,
    })
    return { eval_id: id }
  }
  const ingested = async (content: string, content_type = 'text/plain') => ({
    file_id: await upload(app.key, content, { content_type }),
  })
  const prompted = (reply: object) => ({ agent_id: app.agentId, prompt: `@double ${JSON.stringify([reply])}` })
  /** A caller that may read its export, and no longer make it. */
  const leaver = async (): Promise<Client & { leave(): Promise<unknown> }> => {
    const statement = (action: string[]) => ({ statement: [{ effect: 'Allow', action, resource: ['srn:*:*:*'] }] })
    const policy = (await app.admin.post('/policies', { document: statement(['cases:*']) })).body
    const key = (await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })).body
    return {
      ...app.as(key.secret),
      leave: () => app.admin.patch(`/policies/${policy.id}`, { document: statement(['cases:Get*', 'cases:List*']) }),
    }
  }

  type Row = {
    tool: string
    args(): Promise<object> | object
    /** Runs while no worker is active; `by` is the client of the task. */
    meanwhile?(work: { id: string; cancel(): Promise<unknown>; leave(): Promise<unknown> }): Promise<unknown>
    /** Caller. Default the key of the project. */
    by?: 'leaver'
    /** The answer to the form that is awaited. */
    answer?: { key: RegExp; content: object }
    ends: 'completed' | 'failed' | 'cancelled'
  }
  const cancelled: Pick<Row, 'meanwhile' | 'ends'> = { meanwhile: ({ cancel }) => cancel(), ends: 'cancelled' }
  /** For work that cannot be cancelled: the cancel is acknowledged, and the work continues. */
  const carriedOn: Pick<Row, 'meanwhile' | 'ends'> = { meanwhile: ({ cancel }) => cancel(), ends: 'completed' }

  const rows: Record<string, Record<string, Row>> = {
    generation: {
      completes: { tool: 'create-agent-generation', args: () => prompted({ text: 'yes' }), ends: 'completed' },
      fails: { tool: 'create-agent-generation', args: () => prompted({ error: { status: 400 } }), ends: 'failed' },
      'is cancelled': { tool: 'create-agent-generation', args: () => prompted({ text: 'yes' }), ...cancelled },
    },
    orchestration_run: {
      completes: {
        tool: 'start-run',
        args: () => graph({ id: 'ask', type: 'human', prompt: 'Go?' }),
        answer: { key: /^human:/, content: { output: 'yes' } },
        ends: 'completed',
      },
      fails: {
        tool: 'start-run',
        args: async () => graph({ id: 'pay', type: 'tool', tool_id: (await asked('/fails')).tool_id }),
        ends: 'failed',
      },
      'is cancelled': { tool: 'start-run', args: () => graph(step('a')), ...cancelled },
    },
    playbook_execution: {
      'completes by a person': {
        tool: 'start-playbook-execution',
        args: () => playbook(manual),
        answer: { key: /^step:/, content: { note: 'fine', result: '{"amount":1}' } },
        ends: 'completed',
      },
      'completes by an approval': {
        tool: 'start-playbook-execution',
        args: () => playbook({ key: 'allow', title: 'Allow it', type: 'require_approval' }),
        answer: { key: /^approval:/, content: { decision: 'approve' } },
        ends: 'completed',
      },
      fails: {
        tool: 'start-playbook-execution',
        args: async () =>
          playbook({ key: 'pay', title: 'Pay', type: 'call_tool', tool_id: (await asked('/fails')).tool_id }),
        ends: 'failed',
      },
      'is cancelled': { tool: 'start-playbook-execution', args: () => playbook(manual), ...cancelled },
    },
    eval_run: {
      completes: { tool: 'create-eval-run', args: evaluated, ends: 'completed' },
      fails: {
        tool: 'create-eval-run',
        args: evaluated,
        meanwhile: ({ id }) => failRun(app.services, id, new Error('lost')),
        ends: 'failed',
      },
      'is cancelled': { tool: 'create-eval-run', args: evaluated, ...cancelled },
    },
    decision: {
      completes: { tool: 'create-inline-decision', args: () => asked('/'), ...carriedOn },
      fails: { tool: 'create-inline-decision', args: () => asked('/fails'), ends: 'failed' },
    },
    playbook_export: {
      completes: {
        tool: 'create-export',
        args: async () => ({ subject_type: 'case', subject_id: await aCase() }),
        ...carriedOn,
      },
      fails: {
        tool: 'create-export',
        args: async () => ({ subject_type: 'case', subject_id: await aCase() }),
        by: 'leaver',
        meanwhile: ({ leave }) => leave(),
        ends: 'failed',
      },
    },
    formation: {
      completes: {
        tool: 'create-formation',
        args: async () => ({
          name: 'of a task',
          template: { resources: { Store: { type: 'memory_store', properties: { name: 'of a template' } } } },
        }),
        ...carriedOn,
      },
      fails: {
        tool: 'create-formation',
        args: async () => ({
          name: 'that fails',
          template: {
            resources: {
              Actor: { type: 'actor', properties: { name: 'Ann', agent_id: 'agent_00000000000000000000000000' } },
            },
          },
        }),
        ends: 'failed',
      },
    },
    document: {
      completes: { tool: 'ingest-document', args: () => ingested('Some text.'), ...carriedOn },
      fails: { tool: 'ingest-document', args: () => ingested('not a pdf', 'application/pdf'), ends: 'failed' },
      'is withdrawn': {
        tool: 'ingest-document',
        args: () => ingested('Some text.'),
        meanwhile: ({ id }) => made(`/documents/${id}/withdraw`, {}),
        ends: 'cancelled',
      },
    },
  }

  it('cover every kind of long work', () => {
    assert.deepEqual(
      longWork
        .all()
        .map(({ kind }) => kind)
        .sort(),
      Object.keys(rows).sort(),
    )
  })

  it('are working until a worker starts, and then follow the record', async () => {
    const begun = []
    for (const [kind, cases] of Object.entries(rows))
      for (const [what, row] of Object.entries(cases)) {
        const leaving = row.by ? await leaver() : null
        const token = (leaving ?? app.key).token
        const send = wire(app.url, token)
        const task = await tools(app.url, token)(row.tool, (await row.args()) as never, { capabilities: withForms })
        assert.equal(task.resultType, 'task', `${kind} ${what}: ${JSON.stringify(task)}`)
        assert.equal(task.status, 'working', `${kind} ${what}`)
        const taskId = task.taskId as string
        const ask = async (method: string, more: object = {}, capabilities: object = withForms) => {
          const { body } = await send(method, { taskId, ...more }, { capabilities: capabilities as never })
          assert.ok(body.result, `${kind} ${what}: ${JSON.stringify(body)}`)
          return body.result
        }
        await row.meanwhile?.({
          id: taskId.split('.')[0],
          cancel: () => ask('tasks/cancel'),
          leave: async () => leaving?.leave(),
        })
        begun.push({ name: `${kind} ${what}`, kind, row, ask })
      }
    worker = await runWorker(app.databaseUrl, { EGRESS_ALLOW_HOSTS: '127.0.0.1' }, CONCERNS)
    for (const { name, kind, row, ask } of begun) {
      const until = (status: string): Promise<any> => {
        let last: any
        return eventually(
          async () => {
            last = await ask('tasks/get')
            return last.status === status && last
          },
          { what: `${name} ${status}` },
        ).catch(error => {
          throw new Error(`${error.message}: ${JSON.stringify(last)}`)
        })
      }
      if (row.answer) {
        const { inputRequests } = await until('input_required')
        const [key, ...others] = Object.keys(inputRequests)
        assert.deepEqual(others, [], name)
        assert.match(key, row.answer.key)
        assert.equal((await ask('tasks/get', {}, withTasks)).status, 'working', name)
        await ask('tasks/update', { inputResponses: { [key]: { action: 'accept', content: row.answer.content } } })
      }
      const done = await until(row.ends === 'cancelled' ? 'cancelled' : 'completed')
      if (row.ends === 'cancelled') {
        assert.equal(done.result, undefined, name)
        continue
      }
      assert.equal(done.result.isError === true, row.ends === 'failed', `${name}: ${JSON.stringify(done.result)}`)
      if (row.ends === 'failed') assert.ok(done.result.structuredContent.error.code, name)
      else assert.equal(typeof done.result.structuredContent.id, 'string', `${kind}: ${JSON.stringify(done.result)}`)
    }
  })
})
