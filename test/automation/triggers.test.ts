import assert from 'node:assert/strict'
import { json, made } from '../execution/tool-target.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { forSuite } from '../support/suite.ts'
import { codeOf, ended, fired, firingsOf, madeTrigger, startTriggerApp, tryTrigger } from './triggers-support.ts'

describe('triggers', function () {
  this.timeout(60_000)
  const app = forSuite(startTriggerApp)
  const key = forSuite(() => app.key)
  let tool: { target_type: string; target_id: string }
  let agent: { target_type: string; target_id: string }
  let double: ReturnType<typeof doubleClient>

  before(async () => {
    tool = { target_type: 'tool', target_id: app.toolId }
    agent = { target_type: 'agent', target_id: app.agentId }
    double = doubleClient(app.double)
  })
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  it('creates, lists, updates and deletes triggers', async () => {
    const trigger = await madeTrigger(key, { ...tool, name: 'nightly', description: 'x', input: { seed: 1 } })
    assert.match(trigger.id, /^trg_/)
    assert.deepEqual(
      [trigger.active, trigger.next_fire_at, trigger.hook_url, trigger.run_as],
      [true, null, null, { kind: 'api_key', id: trigger.run_as.id }],
    )
    assert.equal('secret' in trigger, false)
    assert.deepEqual(codeOf(await tryTrigger(key, { ...tool, name: 'nightly' })), [409, 'NAME_CONFLICT'])
    assert.equal((await key.get('/triggers?name=NIGHT&type=manual&target_type=tool&active=true')).body.total, 1)
    assert.equal((await key.get(`/triggers?target_id=${app.toolId}&type=event`)).body.total, 0)
    const path = `/triggers/${trigger.id}`
    assert.equal((await key.patch(path, { type: 'manual', description: 'y' })).body.description, 'y')
    assert.deepEqual(codeOf(await key.patch(path, { type: 'event' })), [400, 'TRIGGER_TYPE_IMMUTABLE'])
    assert.equal((await (await app.project()).key.get(path)).status, 404)
    assert.equal((await key.delete(path)).status, 204)
    const events = (await key.get(`/events?resource_id=${trigger.id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: any) => event),
      ['triggers.deleted', 'triggers.updated', 'triggers.created'],
    )
  })

  it('rejects incompatible fields and reports the field', async () => {
    const platform = await made(key, { type: 'platform', name: 'p', actions: ['list-actors'] })
    const clients = await made(key, { type: 'client', name: 'c' })
    const cases: [object, string, string][] = [
      [{ ...tool, cron: '* * * * *' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'cron'],
      [{ ...tool, type: 'schedule' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'cron'],
      [{ ...tool, type: 'schedule', cron: '* * * * * *' }, 'INVALID_CRON_EXPRESSION', 'cron'],
      [{ ...tool, type: 'schedule', cron: '@daily' }, 'INVALID_CRON_EXPRESSION', 'cron'],
      [{ ...tool, type: 'schedule', cron: '0 0 31 2 *' }, 'INVALID_CRON_EXPRESSION', 'cron'],
      [{ ...tool, type: 'schedule', cron: '* * * * *', timezone: 'Mars/X' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'timezone'],
      [{ ...tool, timezone: 'UTC' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'timezone'],
      [{ ...tool, overlap_policy: 'skip' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'overlap_policy'],
      [{ ...tool, event_pattern: '*' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'event_pattern'],
      [{ ...tool, type: 'event' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'event_pattern'],
      [{ ...tool, type: 'event', event_pattern: 'documents.ingsted' }, 'INVALID_EVENT_PATTERN', 'event_pattern'],
      [{ ...tool, type: 'event', event_pattern: 'Orders.x' }, 'INVALID_EVENT_PATTERN', 'event_pattern'],
      [{ ...tool, type: 'event', event_pattern: '*.created' }, 'INVALID_EVENT_PATTERN', 'event_pattern'],
      [{ ...tool, event_filter: true }, 'TRIGGER_ACTION_NOT_ALLOWED', 'event_filter'],
      [{ ...tool, signature_scheme: 'body_sha256' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'signature_scheme'],
      [{ ...tool, type: 'webhook', signature_header: 'X-Hub' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'signature_header'],
      [{ ...tool, action: 'x' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'action'],
      [{ ...agent, action: 'x' }, 'TRIGGER_ACTION_NOT_ALLOWED', 'action'],
      [{ target_type: 'tool', target_id: clients.id }, 'TRIGGER_ACTION_NOT_ALLOWED', 'target_id'],
      [{ target_type: 'tool', target_id: platform.id }, 'TRIGGER_ACTION_NOT_ALLOWED', 'action'],
    ]
    for (const [fields, code, field] of cases) {
      const reply = await tryTrigger(key, fields as Record<string, unknown>)
      assert.deepEqual([...codeOf(reply), reply.body.error?.meta?.field], [400, code, field], JSON.stringify(fields))
    }
    for (const event_pattern of ['*', 'orders.shipped', 'documents.*', 'tasks.created', 'audit.entry_created'])
      await madeTrigger(key, { ...tool, type: 'event', event_pattern, active: false })
    const other = await app.project()
    const foreign = await made(other.key, { execute: { url: app.target.url } })
    for (const target of [
      { target_type: 'tool', target_id: foreign.id },
      { target_type: 'tool', target_id: app.agentId },
      { target_type: 'agent', target_id: 'agent_x' },
      { target_type: 'eval', target_id: 'eval_x' },
      { target_type: 'playbook', target_id: 'pbk_x' },
    ])
      assert.deepEqual(codeOf(await tryTrigger(key, target)), [400, 'TRIGGER_TARGET_NOT_FOUND'])
    assert.deepEqual(codeOf(await tryTrigger(key, { ...tool, policy_id: 'pol_x' })), [400, 'POLICY_NOT_FOUND'])
    const big = await tryTrigger(key, { ...tool, input: { text: 'x'.repeat(256 * 1024) } })
    assert.deepEqual(codeOf(big), [400, 'VALIDATION_FAILED'])
  })

  it('calls a tool with the input and the firing ID as idempotency key', async () => {
    const trigger = await madeTrigger(key, { ...tool, input: { seed: 1, both: 'trigger' } })
    const firing = await fired(key, trigger.id, { extra: 2, both: 'fire' })
    assert.deepEqual(
      [firing.status, firing.source, firing.attempts, firing.input, firing.error, firing.causation_chain],
      ['succeeded', 'manual', 1, { seed: 1, both: 'fire', extra: 2 }, null, []],
    )
    assert.deepEqual(firing.result, { target_type: 'tool', result_id: null, status: 'completed', output: { ok: true } })
    assert.equal(firing.fired_by.kind, 'api_key')
    assert.ok(firing.started_at && firing.completed_at)
    assert.deepEqual(JSON.parse(app.target.last().body), { seed: 1, both: 'fire', extra: 2 })
    assert.equal(app.target.last().headers['idempotency-key'], firing.id)
    const feed = (await key.get('/activity?kind=action_executed')).body.data
    assert.ok(feed.some(({ detail }: any) => detail.trigger_firing_id === firing.id))
    assert.deepEqual(codeOf(await key.get('/trigger-firings')), [400, 'VALIDATION_FAILED'])
    assert.equal(
      (await key.get(`/trigger-firings?trigger_id=${trigger.id}&status=succeeded&source=manual`)).body.total,
      1,
    )
    assert.equal(
      (await key.get(`/trigger-firings?trigger_id=${trigger.id}&status=running&status=pending`)).body.total,
      0,
    )
    const stranger = (await app.project()).key
    assert.equal((await stranger.get(`/trigger-firings?trigger_id=${trigger.id}`)).status, 404)
    assert.equal((await stranger.get(`/trigger-firings/${firing.id}`)).status, 404)
  })

  it('stores the error of a tool and a preview of a long output', async () => {
    const trigger = await madeTrigger(key, tool)
    app.target.answer = json({ no: true }, 500)
    const failed = await fired(key, trigger.id)
    assert.deepEqual([failed.status, failed.error.code, failed.result.status], ['failed', 'TOOL_HTTP_ERROR', 'failed'])
    app.target.answer = json({ text: 'x'.repeat(5000) })
    const { output } = (await fired(key, trigger.id)).result
    assert.deepEqual([output.truncated, output.preview.length], [true, 4000])
  })

  it('starts an agent turn that settles the firing and references the trigger', async () => {
    const trigger = await madeTrigger(key, agent)
    assert.deepEqual(codeOf(await key.post(`/triggers/${trigger.id}/fire`)), [400, 'TRIGGER_INPUT_INVALID'])
    for (const input of [{ messages: [] }, { messages: [{ role: 'user' }] }, { messages: 'x' }])
      assert.deepEqual(codeOf(await key.post(`/triggers/${trigger.id}/fire`, { input })), [
        400,
        'TRIGGER_INPUT_INVALID',
      ])
    const system = await key.post(`/triggers/${trigger.id}/fire`, {
      input: { messages: [{ role: 'system', content: 'x' }] },
    })
    assert.deepEqual(codeOf(system), [400, 'SYSTEM_MESSAGE_NOT_ALLOWED'])
    assert.equal((await firingsOf(key, trigger.id)).length, 0)
    const firing = await fired(key, trigger.id, { message: 'hello there' })
    assert.deepEqual([firing.status, firing.result.status], ['succeeded', 'completed'])
    assert.equal(typeof firing.result.output, 'string')
    const generation = (await key.get(`/generations/${firing.result.result_id}`)).body
    assert.deepEqual(
      [generation.source, generation.started_by_principal_type, generation.started_by_principal_id],
      ['trigger', null, null],
    )
    await fired(key, trigger.id, { any: 'thing' })
  })

  it('succeeds when the turn waits for its client and keeps that status', async () => {
    const clientTool = await made(key, { type: 'client', name: 'ask', parameters: { type: 'object' } })
    await double.put('waits', {
      rules: [{ when: { call: 1 }, reply: { tool_calls: [{ name: 'ask', args: {} }] } }, { reply: { text: 'done' } }],
    })
    const id = await app.agent({ model: 'waits/m', tool_bindings: [{ tool_id: clientTool.id }] })
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: id })
    const firing = await fired(key, trigger.id, { message: 'hi' })
    assert.deepEqual([firing.status, firing.result.status], ['succeeded', 'requires_action'])
  })

  it('stores the error of a failed turn', async () => {
    await double.put('broken', { rules: [{ reply: { error: { status: 400, message: 'no' } } }] })
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: await app.agent({ model: 'broken/m' }) })
    const firing = await fired(key, trigger.id, { message: 'hi' })
    assert.deepEqual(
      [firing.status, firing.error.code, firing.result.status],
      ['failed', 'AI_PROVIDER_ERROR', 'failed'],
    )
  })

  it('returns immediately with wait false', async () => {
    const trigger = await madeTrigger(key, tool)
    for (const [query, body] of [
      ['?wait=false', {}],
      ['', { wait: false }],
    ] as const) {
      const reply = await key.post(`/triggers/${trigger.id}/fire${query}`, body)
      assert.deepEqual([reply.status, reply.body.status], [202, 'pending'])
      assert.equal((await ended(key, reply.body.id)).status, 'succeeded')
    }
  })

  it('fires only while the trigger is active and the project is not paused', async () => {
    const trigger = await madeTrigger(key, { ...tool, active: false })
    assert.deepEqual(codeOf(await key.post(`/triggers/${trigger.id}/fire`)), [409, 'TRIGGER_NOT_ACTIVE'])
    await key.patch(`/triggers/${trigger.id}`, { active: true })
    await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'night' })
    const refused = await key.post(`/triggers/${trigger.id}/fire`)
    assert.deepEqual([...codeOf(refused), refused.body.error.meta.pause_reason], [409, 'PROJECT_PAUSED', 'night'])
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.equal((await firingsOf(key, trigger.id)).length, 0)
    assert.equal((await fired(key, trigger.id)).status, 'succeeded')
  })

  it('maps the input', async () => {
    const trigger = await madeTrigger(key, {
      ...tool,
      input: { a: 1 },
      input_mapping: { sum: { '+': [{ var: 'input.a' }, { var: 'input.b' }] }, by: { var: 'trigger.name' } },
    })
    const firing = await fired(key, trigger.id, { b: 2 })
    assert.deepEqual(firing.input, { sum: 3, by: trigger.name })
  })

  it('returns the secret only from the secret operations', async () => {
    const trigger = await madeTrigger(key, { ...tool, type: 'webhook' })
    assert.match(trigger.secret, /^[0-9a-f]{64}$/)
    assert.ok(trigger.hook_url.endsWith(`/api/v1/hooks/triggers/${trigger.id}`))
    const path = `/triggers/${trigger.id}`
    for (const body of [
      (await key.get(path)).body,
      (await key.get('/triggers?type=webhook')).body,
      (await key.patch(path, { description: 'x' })).body,
      (await key.get(`/events?resource_id=${trigger.id}`)).body,
    ])
      assert.equal(JSON.stringify(body).includes(trigger.secret), false)
    assert.equal((await key.get(path)).body.hook_url, trigger.hook_url)
    assert.deepEqual((await key.get(`${path}/secret`)).body, { secret: trigger.secret })
    const audited = (
      await app.admin.get(`/audit-log?action=triggers:GetTriggerSecret&resource_public_id=${trigger.id}`)
    ).body.data
    assert.deepEqual(
      audited.map(({ status, project_id }: any) => [status, project_id]),
      [[200, app.projectId]],
    )
    const rotated = (await key.post(`${path}/rotate-secret`)).body
    assert.match(rotated.secret, /^[0-9a-f]{64}$/)
    assert.notEqual(rotated.secret, trigger.secret)
    const manual = await madeTrigger(key, tool)
    for (const reply of [
      await key.get(`/triggers/${manual.id}/secret`),
      await key.post(`/triggers/${manual.id}/rotate-secret`),
    ])
      assert.deepEqual(codeOf(reply), [400, 'TRIGGER_ACTION_NOT_ALLOWED'])
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['triggers:GetTrigger'], resource: [`srn:${app.projectId}:*:*`] }] },
    ])
    assert.equal((await reader.get(path)).status, 200)
    assert.equal((await reader.get(`${path}/secret`)).status, 403)
  })

  it('copies a trigger with its project as inactive, with a new secret, running as the caller', async () => {
    const trigger = await madeTrigger(key, { ...tool, type: 'webhook', input: { z: 1, a: 2 } })
    const copied = await app.admin.post(`/projects/${app.projectId}/clone`, {
      name: 'copy',
      include: ['tools', 'triggers'],
    })
    assert.equal(copied.status, 201, JSON.stringify(copied.body))
    const { body: copy } = await app.admin.get(`/triggers/${copied.body.ids[trigger.id]}`)
    assert.deepEqual(
      [copy.project_id, copy.active, copy.target_id, copy.run_as.kind, Object.keys(copy.input)],
      [copied.body.project.id, false, copied.body.ids[app.toolId], 'user', ['z', 'a']],
    )
    assert.notEqual((await app.admin.get(`/triggers/${copy.id}/secret`)).body.secret, trigger.secret)
  })
})
