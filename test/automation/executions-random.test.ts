import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { madeDecider, TOOL_ANSWERS } from '../execution/decider-support.ts'
import { postedBy } from '../support/replies.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'
import { RUN_ACTIONS, startRunApp } from './fixtures.ts'
import { together } from './support/crowd.ts'
import { type Cast, type Expected, interpreted, type RandomPlaybook, randomPlaybook } from './support/playbooks.ts'

/** Number of playbooks, and the first seed. */
const PLAYBOOKS = rounds('RANDOM_PLAYBOOKS', 20, 1000)
const SEED = Number(process.env.RANDOM_PLAYBOOKS_SEED ?? 1)

const AT_ONCE = 12

describe('random playbooks', function () {
  this.timeout(1_800_000)
  const app = forSuite(() =>
    startRunApp({
      workers: ['orchestration', 'generation'],
      actions: [...RUN_ACTIONS, 'playbooks:*', 'cases:*', 'deciders:*', 'tools:CallTool'],
    }),
  )
  let cast: Cast

  before(async () => {
    app.target.answer = ({ url, body }, response) => {
      const { fail, value = null } = url.startsWith('/decide') ? {} : JSON.parse(body)
      const answer = url.startsWith('/decide') ? TOOL_ANSWERS : { value }
      response.writeHead(fail ? 400 : 200, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
    }
    const decides = await app.tool({ execute: { url: `${app.target.url}/decide` } })
    cast = {
      tool: await app.tool({ execute: { url: app.target.url, method: 'POST' } }),
      decider: (await madeDecider(app.key, { tool_id: decides })).id,
      orchestration: await app.orchestration([{ id: 'x', type: 'transform', expression: { var: 'input.value' } }]),
    }
  })

  const made = (path: string, body: object): Promise<any> => postedBy(app.key, path, body)

  /** Drives an execution to its end, completing manual steps and approvals. */
  const followed = async ({ seed, definition, fields, people }: RandomPlaybook): Promise<Expected> => {
    const playbook = await made('/playbooks', { name: `seed ${seed}`, ...definition })
    const kase = await made('/cases', { title: `seed ${seed}`, fields })
    const { id } = await made('/playbook-executions', { case_id: kase.id, playbook_id: playbook.id })
    for (const until = Date.now() + 60_000; ; ) {
      const { body: execution } = await app.key.get(`/playbook-executions/${id}`)
      const { status, waiting_on } = execution
      if (status === 'completed' || status === 'failed') return seen(execution)
      if (Date.now() > until) throw new Error(`${id} is ${status}: ${JSON.stringify(waiting_on)}`)
      if (waiting_on === null) {
        await sleep(20)
        continue
      }
      const { step_key, type, approval_id } = waiting_on
      const { skips, value, approves } = people[step_key]
      const path = `/playbook-executions/${id}/steps/${step_key}`
      if (type === 'approval') {
        // Waits until a worker has processed the decision.
        const { status } = (await app.key.get(`/approvals/${approval_id}`)).body
        if (status !== 'pending') await sleep(20)
        else
          await made(`/approvals/${approval_id}/${approves ? 'approve' : 'reject'}`, approves ? {} : { reason: 'no' })
      } else if (definition.steps.find(({ key }) => key === step_key)?.skippable && skips)
        await made(`${path}/skip`, { reason: 'no' })
      else await made(`${path}/complete`, { result: { value } })
    }

    async function seen({ status, outcome, error, steps, output }: any): Promise<Expected> {
      const { body: after } = await app.key.get(`/cases/${kase.id}`)
      assert.equal(after.status, status === 'completed' && definition.resolve_case ? 'resolved' : 'open')
      const timeline = (await app.key.get(`/cases/${kase.id}/timeline?limit=100`)).body.data
      const outputs = Object.fromEntries(
        steps.flatMap((step: any) => (step.status === 'completed' ? [[step.key, withoutIds(step)]] : [])),
      )
      if (status === 'completed') assert.deepEqual(Object.keys(output), Object.keys(outputs))
      return {
        status,
        code: error?.code ?? null,
        outcome,
        steps: Object.fromEntries(steps.map((step: any) => [step.key, step.status])),
        outputs,
        fields: after.fields,
        told: timeline
          .filter(({ kind }: any) => kind.startsWith('step_'))
          .map(({ kind, step_key }: any) => `${kind} ${step_key}`),
      }
    }
  }

  it('match the expected outcome', async () => {
    const seeds = Array.from({ length: PLAYBOOKS }, (_, index) => SEED + index)
    const wrong: string[] = []
    await together(seeds, AT_ONCE, async seed => {
      const playbook = randomPlaybook(seed, cast)
      try {
        assert.deepEqual(await followed(playbook), interpreted(playbook))
      } catch (error) {
        wrong.push(`seed ${seed}: ${(error as Error).message}\n${JSON.stringify(playbook)}`)
      }
    })
    assert.equal(wrong.length, 0, wrong.slice(0, 3).join('\n\n'))
  })
})

/** Returns the output of a step without values that the platform generates. */
function withoutIds({ type, output }: any): unknown {
  if (type === 'require_approval') return { decision: output.decision }
  return type === 'ask_decider' ? { decided: output.answers.length === 3 } : output
}
