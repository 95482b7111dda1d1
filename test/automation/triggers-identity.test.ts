import assert from 'node:assert/strict'
import { json, made } from '../execution/tool-target.ts'
import { type Client, eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import {
  ACTIONS,
  codeOf,
  fired,
  firingsOf,
  hook,
  madeTrigger,
  startTriggerApp,
  tryTrigger,
} from './triggers-support.ts'

/** Returns the error with which the platform refused the tool call. */
const refusalOf = ({ error }: any): string => JSON.parse(error.meta.tool_response_body).error.code

describe('trigger permissions', function () {
  this.timeout(60_000)
  const app = forSuite(() => startTriggerApp({ actions: [...ACTIONS, 'policies:*'] }))
  let tool: { target_type: string; target_id: string }
  const statement = (action: string[], effect = 'Allow') => ({
    statement: [{ effect, action, resource: [`srn:${app.projectId}:*:*`] }],
  })
  /** Creates a user with a policy that the test can change. */
  const creator = async (action: string[]) => {
    const user = await app.user(undefined, [])
    const policy = (await app.admin.post('/policies', { document: statement(action) })).body.id
    await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [policy] })
    return { user, policy }
  }
  const of = (fields: object) => ({ project_id: app.projectId, ...fields })
  /** Creates a platform tool with some operations, and a trigger for one of them. */
  const platformTrigger = async (key: Client, action: string, fields: object = {}) => {
    const { id } = await made(app.admin, of({ name: 'platform', type: 'platform', actions: [action] }))
    return madeTrigger(key, of({ target_type: 'tool', target_id: id, action, ...fields }))
  }

  before(async () => {
    tool = { target_type: 'tool', target_id: app.toolId }
  })
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  it('requires the permission to start the target on create and on a change of the target', async () => {
    const { user } = await creator(['triggers:*'])
    assert.deepEqual(codeOf(await tryTrigger(user, of(tool))), [403, 'FORBIDDEN'])
    const trigger = await madeTrigger(app.key, tool)
    const path = `/triggers/${trigger.id}`
    const agent = { target_type: 'agent', target_id: app.agentId }
    for (const patch of [agent, { input: { a: 1 } }, { input_mapping: { a: 1 } }])
      assert.deepEqual(codeOf(await user.patch(path, patch)), [403, 'FORBIDDEN'])
    const stored = (await app.key.get(path)).body
    assert.deepEqual([stored.target_id, stored.input], [app.toolId, null])
    assert.equal((await user.patch(path, { description: 'x', active: false })).status, 200)
    assert.equal((await user.patch(path, { active: true })).status, 200)
    // Firing requires no permission on the target.
    assert.equal((await user.post(`${path}/fire`)).body.status, 'succeeded')
    assert.deepEqual((await app.key.get(path)).body.run_as.kind, 'api_key')
  })

  it('uses the current permissions of the creator', async () => {
    const { user, policy } = await creator(['triggers:*', 'tools:CallTool'])
    const trigger = await madeTrigger(user, of({ ...tool, type: 'webhook' }))
    assert.deepEqual(trigger.run_as, { kind: 'user', id: user.id })
    assert.equal((await fired(app.key, trigger.id)).status, 'succeeded')
    await app.admin.put(`/policies/${policy}`, { document: statement(['triggers:*']) })
    const refused = await app.key.post(`/triggers/${trigger.id}/fire`)
    assert.deepEqual(codeOf(refused), [403, 'FORBIDDEN'])
    assert.equal((await hook(app.url, trigger, '{}')).status, 403)
    assert.equal((await firingsOf(app.key, trigger.id)).length, 1)
  })

  it('keeps a trigger whose creator was deleted but does not fire it', async () => {
    const { user } = await creator(['triggers:*', 'tools:CallTool'])
    const trigger = await madeTrigger(user, of({ ...tool, type: 'webhook' }))
    const schedule = await madeTrigger(user, of({ ...tool, type: 'schedule', cron: '0 0 1 1 *' }))
    assert.equal((await app.admin.delete(`/users/${user.id}`)).status, 204)
    assert.deepEqual(codeOf(await app.key.post(`/triggers/${trigger.id}/fire`)), [409, 'TRIGGER_CREATOR_UNAVAILABLE'])
    const { status, body } = await hook(app.url, trigger, '{}')
    assert.deepEqual([status, body.error.code], [409, 'TRIGGER_CREATOR_UNAVAILABLE'])
    const { sql } = await import('#core/db/sql.ts')
    await app.pool.query(
      sql.unsafe`update triggers set next_fire_at = now() - interval '1 s' where id = ${schedule.id}`,
    )
    const [firing] = await eventually(async () => {
      const all = await firingsOf(app.key, schedule.id)
      return all[0]?.status === 'failed' ? all : null
    })
    assert.equal(firing.error.code, 'TRIGGER_CREATOR_UNAVAILABLE')
    assert.equal((await app.key.get(`/triggers/${trigger.id}`)).status, 200)
    assert.equal(app.target.requests.length, 0)
  })

  it('applies the policies of an API key and stops when the key is revoked', async () => {
    const project = await app.projectWith(['triggers:*', 'tools:*'])
    const target = await made(project.key, { execute: { url: app.target.url } })
    const trigger = await madeTrigger(project.key, { target_type: 'tool', target_id: target.id })
    assert.deepEqual(trigger.run_as, { kind: 'api_key', id: project.keyId })
    assert.equal((await fired(project.key, trigger.id)).status, 'succeeded')
    await app.admin.delete(`/project-keys/${project.keyId}`)
    assert.deepEqual(codeOf(await app.admin.post(`/triggers/${trigger.id}/fire`)), [409, 'TRIGGER_CREATOR_UNAVAILABLE'])
  })

  it('applies the policy of the trigger, even for an admin', async () => {
    const boundary = (
      await app.admin.post('/policies', { document: statement(['tools:CallTool', 'actors:ListActors']) })
    ).body.id
    const fields = { policy_id: boundary }
    const allowed = await platformTrigger(app.admin, 'list-actors', fields)
    assert.equal((await fired(app.key, allowed.id)).status, 'succeeded')
    const denied = await platformTrigger(app.admin, 'create-actor', { ...fields, input: { name: 'x' } })
    const firing = await fired(app.key, denied.id)
    assert.deepEqual([firing.status, refusalOf(firing)], ['failed', 'FORBIDDEN'])
    const free = await platformTrigger(app.admin, 'create-actor', { input: { name: 'x' } })
    assert.equal((await fired(app.key, free.id)).status, 'succeeded')
    const held = await app.admin.delete(`/policies/${boundary}`)
    assert.deepEqual([...codeOf(held), held.body.error.meta.counts.triggers], [409, 'POLICY_HAS_DEPENDENTS', 2])
    // A change of the document applies to the next firing.
    await app.admin.put(`/policies/${boundary}`, { document: statement(['actors:*']) })
    assert.deepEqual(codeOf(await app.key.post(`/triggers/${allowed.id}/fire`)), [403, 'FORBIDDEN'])
    await app.admin.put(`/policies/${boundary}`, { document: statement(['tools:CallTool', 'actors:*']) })
    assert.equal((await fired(app.key, denied.id)).status, 'succeeded')
  })

  it('confines an admin to the project', async () => {
    const other = await app.project()
    const trigger = await platformTrigger(app.admin, 'create-actor', { input: { name: 'x', project_id: other.id } })
    const firing = await fired(app.key, trigger.id)
    assert.equal(firing.status, 'failed')
    assert.equal((await other.key.get('/actors')).body.total, 0)
  })

  it('refuses to fire or create triggers from started work, at any depth', async () => {
    const double = (await import('../local/double/client.ts')).client(app.double)
    const inner = await madeTrigger(app.key, tool)
    const fire = await platformTrigger(app.key, 'fire-trigger', { input: { trigger_id: inner.id } })
    const direct = await fired(app.key, fire.id)
    assert.deepEqual([direct.status, refusalOf(direct)], ['failed', 'TRIGGER_RECURSION_FORBIDDEN'])
    const create = await platformTrigger(app.key, 'create-trigger', {
      input: { name: 'made by a trigger', type: 'manual', ...tool },
    })
    assert.equal(refusalOf(await fired(app.key, create.id)), 'FORBIDDEN')
    const change = await platformTrigger(app.key, 'update-trigger', {
      input: { trigger_id: inner.id, description: 'x' },
    })
    assert.equal(refusalOf(await fired(app.key, change.id)), 'FORBIDDEN')
    // A turn that calls another agent, whose tool fires the trigger.
    const platform = await made(app.key, { name: 'fires', type: 'platform', actions: ['fire-trigger'] })
    await double.put('inner', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'tried' } },
        { reply: { tool_calls: [{ name: 'fires_fire-trigger', args: { trigger_id: inner.id } }] } },
      ],
    })
    const below = await app.agent({ model: 'inner/m', tool_bindings: [{ tool_id: platform.id }] })
    const calls = await made(app.key, { name: 'asks', type: 'platform', actions: ['create-agent-generation'] })
    await double.put('outer', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'asked' } },
        {
          reply: {
            tool_calls: [{ name: 'asks_create-agent-generation', args: { agent_id: below, prompt: 'go' } }],
          },
        },
      ],
    })
    const above = await app.agent({ model: 'outer/m', tool_bindings: [{ tool_id: calls.id }] })
    const trigger = await madeTrigger(app.key, { target_type: 'agent', target_id: above })
    const firing = await fired(app.key, trigger.id, { message: 'go' })
    assert.equal(firing.status, 'succeeded', JSON.stringify(firing))
    const requests = JSON.stringify(await double.requests('inner'))
    assert.match(requests, /TRIGGER_RECURSION_FORBIDDEN|may not fire|cannot fire/)
    assert.equal((await firingsOf(app.key, inner.id)).length, 0)
  })

  it('refuses to create a trigger as an agent with a boundary policy', async () => {
    const double = (await import('../local/double/client.ts')).client(app.double)
    const platform = await made(app.key, { name: 'makes', type: 'platform', actions: ['create-trigger'] })
    await double.put('maker', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'tried' } },
        {
          reply: {
            tool_calls: [{ name: 'makes_create-trigger', args: { name: 'shed', type: 'manual', ...tool } }],
          },
        },
      ],
    })
    const fields = { model: 'maker/m', tool_bindings: [{ tool_id: platform.id }] }
    const boundary_policy = statement(['triggers:*', 'tools:*'])
    const bound = await app.agent({ ...fields, boundary_policy })
    const run = (id: string) => app.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'go' })
    assert.equal((await run(bound)).status, 200)
    assert.equal((await app.key.get('/triggers?name=shed')).body.total, 0)
    assert.equal((await run(await app.agent(fields))).status, 200)
    assert.equal((await app.key.get('/triggers?name=shed')).body.total, 1)
  })

  it('fails a firing whose target was deleted', async () => {
    const target = await made(app.key, { execute: { url: app.target.url } })
    const trigger = await madeTrigger(app.key, { target_type: 'tool', target_id: target.id })
    await app.key.delete(`/tools/${target.id}`)
    assert.deepEqual(codeOf(await app.key.post(`/triggers/${trigger.id}/fire`)), [400, 'TRIGGER_TARGET_NOT_FOUND'])
    assert.equal((await app.key.get(`/triggers/${trigger.id}`)).status, 200)
  })
})
