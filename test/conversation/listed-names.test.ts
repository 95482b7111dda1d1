import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('names in lists', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ workers: ['generation'] }))
  const LISTS = ['sessions:ListSessions', 'generations:ListGenerations', 'approvals:ListApprovals']
  const reader = (action: string[], resource = [`srn:${app.projectId}:*:*`]) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource }] }])
  const list = async (client: { get(path: string): Promise<any> }, path: string) => {
    const { status, body } = await client.get(path)
    assert.equal(status, 200, JSON.stringify(body))
    return body.data
  }

  /** A customer with a session in which its agent has replied. */
  async function customer(name = 'Ada') {
    const external_id = `customer-${Math.random()}`
    const actor = await createdBy(app.key, '/actors', { name, external_id })
    const agent = await app.agent({ name: 'Concierge' })
    const session = await createdBy(app.key, '/sessions', { agent_id: agent, actor_id: actor.id })
    await postedBy(app.key, `/sessions/${session.id}/messages`, { message: `Hello ${'x'.repeat(300)}` })
    await postedBy(app.key, `/sessions/${session.id}/generate?wait=true`, {})
    return {
      actor,
      agent,
      session,
      names: { actor_name: name, actor_external_id: external_id, agent_name: 'Concierge' },
    }
  }
  const namesOf = ({ actor_name, actor_external_id, agent_name }: any) => ({
    actor_name,
    actor_external_id,
    agent_name,
  })
  const NONE = { actor_name: null, actor_external_id: null, agent_name: null }

  it('come with sessions and generations, in the one statement of the list', async () => {
    const { actor, agent, session, names } = await customer()
    for (const path of [`/sessions?actor_id=${actor.id}`, `/generations?agent_id=${agent}`]) {
      await list(app.key, path)
      const before = app.statements.length
      const [entry] = await list(app.key, path)
      const statements = app.statements.slice(before).filter(text => /actors/.test(text))
      assert.equal(statements.length, 1)
      assert.deepEqual(namesOf(entry), names, path)
    }
    const [entry] = await list(app.key, `/sessions?actor_id=${actor.id}`)
    const { actor_name, actor_external_id, agent_name, last_message, ...record } = entry
    assert.deepEqual(record, (await app.key.get(`/sessions/${session.id}`)).body)
  })

  it('are null without an end user, and for end users of other projects', async () => {
    const session = await createdBy(app.key, '/sessions', { agent_id: app.agentId })
    const entry = (await list(app.key, '/sessions?limit=100')).find(({ id }: any) => id === session.id)
    assert.deepEqual(namesOf(entry), { ...NONE, agent_name: 'agent' })
    assert.equal(entry.last_message, null)
    const foreign = await (await app.project()).key.post('/actors', { name: 'Eve' })
    // An exception may refer to anything; names are of records of its project only.
    const other = await customer()
    await createdBy(app.admin, '/exceptions', {
      project_id: foreign.body.project_id,
      title: 'Look',
      detail: { session_id: other.session.id },
    })
    const [filed] = await list(app.admin, `/exceptions?project_id=${foreign.body.project_id}`)
    assert.deepEqual([filed.actor_id, filed.actor_name], [null, null])
  })

  it('need the permission to get the named record', async () => {
    const { actor, agent, names } = await customer()
    const path = `/sessions?actor_id=${actor.id}&project_id=${app.projectId}`
    const only = async (actions: string[], resource?: string[]) =>
      namesOf((await list(await reader([...LISTS, ...actions], resource), path))[0])
    assert.deepEqual(await only([]), NONE)
    assert.deepEqual(await only(['actors:GetActor']), { ...names, agent_name: null })
    assert.deepEqual(await only(['agents:GetAgent']), { ...NONE, agent_name: 'Concierge' })
    // By the name of the record, not of the row that refers to it.
    const session = `srn:${app.projectId}:session:*`
    assert.deepEqual(await only(['actors:GetActor'], [session, `srn:${app.projectId}:actor:${actor.id}`]), {
      ...names,
      agent_name: null,
    })
    assert.deepEqual(await only(['actors:GetActor'], [session, `srn:${app.projectId}:agent:${agent}`]), NONE)
  })

  it('come with the last message of a session, cut to 200 characters, for readers of messages only', async () => {
    const { actor, session } = await customer()
    const path = `/sessions?actor_id=${actor.id}&project_id=${app.projectId}`
    const [{ last_message }] = await list(app.key, path)
    const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
    const { role, origin, content, created_at } = data.at(-1)
    assert.deepEqual(last_message, { role, origin, preview: content.slice(0, 200), created_at })
    const without = await reader(['sessions:ListSessions'])
    assert.equal((await list(without, path))[0].last_message, null)
    const messages = await reader(['sessions:ListSessions', 'sessions:ListSessionMessages'])
    assert.deepEqual((await list(messages, path))[0].last_message, last_message)
  })

  it('are not shown to end users', async () => {
    const { actor, agent } = await customer()
    const { token } = await createdBy(app.key, `/actors/${actor.id}/tokens`, { agent_ids: [agent] })
    const response = await fetch(`${app.url}/api/v1/sessions`, { headers: { authorization: `Bearer ${token}` } })
    const { data } = (await response.json()) as { data: object[] }
    assert.equal(data.length, 1)
    for (const field of ['actor_name', 'actor_external_id', 'agent_name', 'last_message'])
      assert.equal(field in data[0], false, field)
  })

  it('come with exceptions about a session', async () => {
    const { session, actor, names } = await customer()
    await postedBy(app.key, `/sessions/${session.id}/attention`, { reason: 'angry' })
    const entry = (await list(app.key, '/exceptions?kind=human_requested')).find(
      ({ detail }: any) => detail.session_id === session.id,
    )
    assert.deepEqual(
      [entry.actor_id, namesOf(entry)],
      [actor.id, { ...names, agent_name: entry.agent_id && names.agent_name }],
    )
  })

  it('come with groups of usage by agent and end user', async () => {
    const { actor, agent, names } = await customer()
    const groups = async (client: { get(path: string): Promise<any> }, by: string) =>
      (await client.get(`/usage/aggregate?group_by=${by}&project_id=${app.projectId}&limit=100`)).body.groups.data
    const group = (rows: any[], key: string) => rows.find(each => each.key === key)
    const { actor_name, actor_external_id } = group(await groups(app.key, 'actor'), actor.id)
    assert.deepEqual([actor_name, actor_external_id], [names.actor_name, names.actor_external_id])
    assert.equal(group(await groups(app.key, 'agent'), agent).agent_name, 'Concierge')
    const usage = await reader(['usage:GetAggregate'])
    assert.equal(group(await groups(usage, 'actor'), actor.id).actor_name, null)
    assert.equal('actor_name' in (await groups(app.key, 'model'))[0], false)
  })
})
