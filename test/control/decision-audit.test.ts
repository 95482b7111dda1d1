import assert from 'node:assert/strict'
import { operations } from '#core/api/operation.ts'
import { expectStatus, startSessionApp } from '../conversation/session-support.ts'
import { type Client, eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

/** Ids of operations by which people decide. */
const DECIDES = /^(approve|reject|resolve|acknowledge|skip|complete|assign|submitHuman|takeOver|handback|transition)/

/** Operations with such a name that no person decides by: they find rows, or change a state on request. */
const OTHER = ['assignMemories', 'completeIngestionCallback', 'resolveCase', 'resolveIngestionRule']

const SECRET = 'sk-of-a-customer'

describe('the audit entry of a decision', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ['*'], workers: ['generation', 'orchestration', 'delivery'] }))
  let person: Client & { id: string }
  before(async () => {
    const statement = [{ effect: 'Allow', action: ['*'], resource: [`srn:${app.projectId}:*:*`] }]
    person = (await app.user('decider', [{ statement }])) as typeof person
  })

  const post = async (path: string, body: object = {}, by: Client = app.key): Promise<Json> => {
    const reply = await by.post(path, body)
    assert.ok(reply.status < 300, `${path}: ${reply.status} ${JSON.stringify(reply.body)}`)
    return reply.body
  }
  const decide = (path: string, body: object = {}) => post(path, body, person)

  let paid = 0
  const approval = async () => {
    const turn = await post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hi' })
    return propose(app, turn.id, { id: null, name: 'pay' }, { amount: ++paid, to: 'Ada', key: SECRET })
  }
  const exception = async () => (await post('/exceptions', { title: `look ${Math.random()}` })).id
  const step = async () => {
    const playbook = await post('/playbooks', {
      name: `Returns ${Math.random()}`,
      steps: [{ key: 'inspect', title: 'Inspect', type: 'manual', skippable: true }],
    })
    const { id: case_id } = await post('/cases', { title: 'Parcel' })
    const { id } = await post('/playbook-executions', { case_id, playbook_id: playbook.id })
    await eventually(async () => (await app.key.get(`/playbook-executions/${id}`)).body.waiting_on)
    return { id, path: `/playbook-executions/${id}/steps/inspect` }
  }

  /** Each decision: makes it, and returns the resource of the entry with the detail that it must have. */
  const scenarios: Record<string, () => Promise<{ id: string | null; detail: Json }>> = {
    async approveApproval() {
      const { id } = await approval()
      await decide(`/approvals/${id}/approve`, { arguments: { amount: 1000, to: 'Ada', note: SECRET } })
      return { id, detail: { decision: 'approved', edited: ['amount', 'key', 'note'] } }
    },
    async rejectApproval() {
      const { id } = await approval()
      await decide(`/approvals/${id}/reject`, { reason: ' too much ' })
      return { id, detail: { decision: 'rejected', reason: 'too much' } }
    },
    async resolveApprovals() {
      const [one, other] = [await approval(), await approval()]
      await decide('/approvals/resolve', { ids: [one.id, other.id, 'apr_x'], decision: 'rejected', reason: 'no' })
      return { id: null, detail: { decision: 'rejected', reason: 'no', resolved: [one.id, other.id] } }
    },
    async acknowledgeException() {
      const id = await exception()
      await decide(`/exceptions/${id}/acknowledge`)
      return { id, detail: { decision: 'acknowledged' } }
    },
    async resolveException() {
      const id = await exception()
      await decide(`/exceptions/${id}/resolve`, { note: 'was down' })
      return { id, detail: { decision: 'resolved', reason: 'was down' } }
    },
    async resolveExceptions() {
      const ids = [await exception(), await exception()]
      await decide(`/exceptions/resolve?project_id=${app.projectId}`, { ids, note: 'both' })
      return { id: null, detail: { decision: 'resolved', reason: 'both', resolved: ids } }
    },
    async submitHumanInput() {
      const graph = await post('/orchestrations', {
        name: `ask ${Math.random()}`,
        nodes: [{ id: 'ask', type: 'human', prompt: 'May it?', options: ['yes', 'no'] }],
        edges: [],
      })
      const { id } = await post('/orchestration-runs', { orchestration_id: graph.id, wait: false })
      await eventually(async () => (await app.key.get(`/orchestration-runs/${id}`)).body.status === 'awaiting_input')
      await decide(`/orchestration-runs/${id}/human-input`, { node_id: 'ask', output: { choice: 'yes', why: SECRET } })
      return { id, detail: { decision: 'yes', node_id: 'ask', edited: ['choice', 'why'] } }
    },
    async completePlaybookStep() {
      const { id, path } = await step()
      await decide(`${path}/complete`, { result: { damage: SECRET }, note: 'a dent' })
      return { id, detail: { decision: 'completed', step: 'inspect', edited: ['damage'], reason: 'a dent' } }
    },
    async skipPlaybookStep() {
      const { id, path } = await step()
      await decide(`${path}/skip`, { reason: 'seen before' })
      return { id, detail: { decision: 'skipped', step: 'inspect', reason: 'seen before' } }
    },
    async assignPlaybookStep() {
      const { id, path } = await step()
      await decide(`${path}/assign`, { assignee: 'Rosa' })
      return { id, detail: { decision: 'assigned', step: 'inspect', assigned_to: 'Rosa' } }
    },
    async transitionTask() {
      const workflow = await post('/workflows', {
        name: `Board ${Math.random()}`,
        states: [
          { name: 'review', kind: 'human', initial: true },
          { name: 'done', terminal: true },
        ],
        transitions: [{ name: 'finish', from: ['review'], to: 'done' }],
      })
      const { id } = await post('/tasks', { workflow_id: workflow.id, title: 'Check' })
      await decide(`/tasks/${id}/transitions`, { transition: 'finish', note: 'checked' })
      return { id, detail: { decision: 'finish', reason: 'checked' } }
    },
    async takeOverSession() {
      const { id } = await app.session()
      await decide(`/sessions/${id}/takeover`, { running: 'abort', note: SECRET })
      const by = { operator_id: person.id, assigned_to: person.id }
      return { id, detail: { decision: 'taken_over', ...by, running: 'abort' } }
    },
    async handbackSession() {
      const { id } = await app.session()
      await decide(`/sessions/${id}/takeover`)
      await decide(`/sessions/${id}/handback`, { note: SECRET })
      return { id, detail: { decision: 'handed_back', operator_id: person.id } }
    },
  }

  /** The newest entry of an action of the person. */
  const entryOf = async (action: string, id: string | null) => {
    const query = `action=${action}&principal_id=${person.id}${id ? `&resource_public_id=${id}` : ''}`
    const { data } = expectStatus(await app.admin.get(`/audit-log?${query}`), 200)
    return data[0]
  }

  it('is declared by every operation by which a person decides', () => {
    const byName = operations.all().filter(({ id, method }) => method === 'post' && DECIDES.test(id))
    const declared = operations.all().filter(({ decision }) => decision)
    const names = (all: readonly { id: string }[]) => all.map(({ id }) => id).toSorted()
    assert.deepEqual(
      names(byName).filter(id => !OTHER.includes(id)),
      names(declared),
    )
    assert.deepEqual(names(declared), Object.keys(scenarios).toSorted())
  })

  for (const [id, scenario] of Object.entries(scenarios))
    it(`has the outcome, the changed names and the reason: ${id}`, async () => {
      const made = await scenario()
      const { action } = operations.get(id)
      const { additional_checks, ...detail } = (await entryOf(action as string, made.id)).detail
      assert.deepEqual(detail, made.detail)
      assert.ok(!JSON.stringify(detail).includes(SECRET))
    })

  it('has the outcome of a request that came too late', async () => {
    const { id } = await approval()
    await decide(`/approvals/${id}/reject`, { reason: 'no' })
    expectStatus(await person.post(`/approvals/${id}/approve`), 409)
    const { status, detail } = await entryOf('approvals:ResolveApproval', id)
    assert.deepEqual([status, detail.decision], [409, 'approved'])
  })
})
