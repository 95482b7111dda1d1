import { strict as assert } from 'node:assert'
import { startApp, type TestApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const codesOf = (body: any): string[] => body.error.meta.problems.map(({ code }: { code: string }) => code)

const states = [
  { name: 'draft', initial: true },
  { name: 'review', stalled_after: 60 },
  { name: 'done', terminal: true },
]
const transitions = [
  { name: 'submit', from: ['draft'], to: 'review' },
  { name: 'back', from: ['review'], to: 'draft' },
  {
    name: 'finish',
    from: ['review'],
    to: 'done',
    guard: { '==': [{ var: 'task.payload.a_b' }, 1] },
    requires_approval: true,
  },
]

describe('workflows', () => {
  const app = forSuite(startApp)
  let key: Awaited<ReturnType<TestApp['projectWith']>>['key']
  let projectId: string
  let counter = 0
  const made = (fields: object = {}) =>
    createdBy(key, '/workflows', { name: `workflow ${++counter}`, states, transitions, ...fields })
  const refused = async (fields: object) => {
    const reply = await key.post('/workflows', { name: `workflow ${++counter}`, states, transitions, ...fields })
    assert.equal(reply.status, 400, JSON.stringify(reply.body))
    assert.equal(reply.body.error.code, 'WORKFLOW_VALIDATION_FAILED', JSON.stringify(reply.body))
    return reply.body
  }

  before(async () => {
    const project = await app.projectWith(['workflows:*', 'tools:*', 'events:ListEvents'])
    ;({ key, id: projectId } = project)
  })

  it('are created, read, listed, updated and deleted with permission', async () => {
    const flow = await made({ description: 'for cards', payload_schema: { type: 'object' } })
    assert.match(flow.id, /^wfl_/)
    assert.deepEqual(flow.states, states)
    assert.deepEqual(flow.transitions, transitions)
    assert.equal(flow.version, 1)
    const path = `/workflows/${flow.id}`
    assert.deepEqual((await key.get(path)).body, flow)
    assert.equal((await key.get(`/workflows?name=${encodeURIComponent(flow.name)}`)).body.total, 1)
    assert.equal((await key.patch(path, { description: null })).body.description, null)
    const taken = await key.post('/workflows', { name: flow.name, states, transitions })
    assert.deepEqual([taken.status, taken.body.error.code], [409, 'NAME_CONFLICT'])
    const statement = [
      { effect: 'Allow', action: ['workflows:GetWorkflow'], resource: [`srn:${projectId}:workflow:*`] },
    ]
    const reader = await app.user('reader', [{ statement }])
    assert.equal((await reader.get(path)).status, 200)
    assert.equal((await reader.patch(path, { name: 'x' })).status, 403)
    const other = (await app.projectWith(['workflows:*'])).key
    assert.equal((await other.get(path)).body.error.code, 'WORKFLOW_NOT_FOUND')
    assert.equal((await key.delete(path)).status, 204)
    assert.equal((await key.get(path)).status, 404)
    const events = (await key.get(`/events?resource_id=${flow.id}`)).body.data.map(({ event }: any) => event)
    assert.deepEqual(events, ['workflows.deleted', 'workflows.updated', 'workflows.created'])
  })

  it('require a name, states and transitions of the right types', async () => {
    for (const body of [
      { states, transitions },
      { name: 'x', transitions },
      { name: 'x', states },
      { name: 'x', states: {}, transitions },
      { name: 'x', states, transitions, payload_schema: [] },
      { name: 'x', states, transitions, color: 'red' },
    ]) {
      const reply = await key.post('/workflows', body)
      assert.deepEqual([reply.status, reply.body.error.code], [400, 'VALIDATION_FAILED'], JSON.stringify(reply.body))
    }
  })

  it('are refused with all their problems', async () => {
    const body = await refused({
      states: [
        { name: 'a', initial: true },
        { name: 'a', initial: true },
      ],
      transitions: [{ name: 't', from: ['a'], to: 'nowhere' }],
    })
    assert.deepEqual(body.error.meta.problems, [
      { code: 'DUPLICATE_STATE_NAME', path: 'states[1].name', message: 'is a duplicate: a' },
      {
        code: 'INITIAL_STATE_COUNT',
        path: 'states',
        message: 'must contain exactly one state with initial: true, contains 2',
      },
      { code: 'UNKNOWN_STATE', path: 'transitions[0].to', message: 'refers to a state that does not exist: nowhere' },
    ])
  })

  it('are refused for each kind of problem', async () => {
    const start = { name: 's', initial: true }
    const dispatch = { kind: 'agent', agent_id: 'agent_01h00000000000000000000000' }
    const entering = (on_enter: unknown, more: object = {}) => ({ states: [start, { name: 'w', on_enter, ...more }] })
    const moving = (transition: object) => ({
      states: [start],
      transitions: [{ name: 't', from: ['s'], to: 's', ...transition }],
    })
    const cases: [object, string][] = [
      [{ states: [], transitions: [] }, 'STATES_REQUIRED'],
      [{ states: [start, { name: ' ' }] }, 'STATE_NAME_REQUIRED'],
      [{ states: [start, { name: 'w', kind: 'robot' }] }, 'STATE_KIND_INVALID'],
      [{ states: [start, { name: 'w', terminal: 'yes' }] }, 'STATE_FIELD_INVALID'],
      [{ states: [start, 'w'] }, 'STATE_FIELD_INVALID'],
      [entering({ dispatch }, { kind: 'human' }), 'HUMAN_STATE_DISPATCH'],
      [entering({ dispatch }, { terminal: true }), 'TERMINAL_STATE_DISPATCH'],
      [{ states: [{ ...start, stalled_after: 0 }] }, 'STALLED_AFTER_INVALID'],
      [entering({}), 'DISPATCH_REQUIRED'],
      [entering({ dispatch: { kind: 'ship' } }), 'DISPATCH_KIND_INVALID'],
      [entering({ dispatch: { kind: 'tool', agent_id: 'x' } }), 'DISPATCH_TARGET_REQUIRED'],
      [entering({ dispatch }), 'DISPATCH_TARGET_NOT_FOUND'],
      [entering({ dispatch: { ...dispatch, input_mapping: [] } }), 'INPUT_MAPPING_INVALID'],
      [entering({ dispatch: { ...dispatch, payload_writes: 1 } }), 'PAYLOAD_WRITES_INVALID'],
      [entering({ dispatch, retry: { max_attempts: 11 } }), 'RETRY_INVALID'],
      [entering({ dispatch, retry: { max_attempts: 2, backoff_seconds: -1 } }), 'RETRY_INVALID'],
      [entering({ dispatch, on_failure: 'gone' }), 'UNKNOWN_TRANSITION'],
      [entering({ dispatch, on_complete: [{ when: true, transition: 'gone' }] }), 'UNKNOWN_TRANSITION'],
      [moving({ name: '' }), 'TRANSITION_NAME_REQUIRED'],
      [
        { states: [start], transitions: [1, 2].map(() => ({ name: 't', from: ['s'], to: 's' })) },
        'DUPLICATE_TRANSITION_NAME',
      ],
      [moving({ from: [] }), 'TRANSITION_FROM_REQUIRED'],
      [moving({ requires_approval: 1 }), 'TRANSITION_FIELD_INVALID'],
      [moving({ guard: { nonsense: 1 } }), 'GUARD_MALFORMED'],
      [moving({ guard: true }), 'GUARD_MALFORMED'],
      [{ payload_schema: { type: 'nonsense' } }, 'PAYLOAD_SCHEMA_INVALID'],
      [{ states: [start, ...Array.from({ length: 100 }, (_, n) => ({ name: `${n}` }))] }, 'LIMIT_EXCEEDED'],
      [{ states: [{ ...start, note: 'x'.repeat(262_144) }] }, 'LIMIT_EXCEEDED'],
    ]
    for (const [fields, code] of cases) {
      const body = await refused({ transitions: [], ...fields })
      assert.ok(codesOf(body).includes(code), `${code}: ${JSON.stringify(body).slice(0, 500)}`)
    }
  })

  it('are refused with at most 1,000 problems', async () => {
    const from = (count: number) => Array.from({ length: count }, (_, n) => `none ${n}`)
    const problemsOf = async (count: number) => {
      const { error } = await refused({ transitions: [{ name: 't', from: from(count), to: 'done' }] })
      return [error.meta.problems.length, error.meta.problems.at(-1).code]
    }
    assert.deepEqual(await problemsOf(1000), [1000, 'UNKNOWN_STATE'])
    assert.deepEqual(await problemsOf(1001), [1000, 'LIMIT_EXCEEDED'])
  })

  it('refer only to tools that can be dispatched', async () => {
    const client = await key.post('/tools', { name: 'asks', type: 'client', parameters: { type: 'object' } })
    const platform = await key.post('/tools', { name: 'lists', type: 'platform', actions: ['list-tools'] })
    assert.deepEqual([client.status, platform.status], [201, 201], JSON.stringify([client.body, platform.body]))
    const using = (dispatch: object) => ({
      states: [{ name: 's', initial: true, on_enter: { dispatch: { kind: 'tool', ...dispatch } } }],
      transitions: [],
    })
    assert.deepEqual(codesOf(await refused(using({ tool_id: client.body.id }))), ['DISPATCH_TARGET_INVALID'])
    assert.deepEqual(codesOf(await refused(using({ tool_id: platform.body.id }))), ['DISPATCH_TARGET_INVALID'])
    const flow = await made(using({ tool_id: platform.body.id, operation_id: 'list-tools' }))
    // Their references may be deleted.
    assert.equal((await key.delete(`/tools/${platform.body.id}`)).status, 204)
    assert.equal((await key.patch(`/workflows/${flow.id}`, { description: 'still' })).status, 200)
    const same = await key.patch(`/workflows/${flow.id}`, { states: flow.states })
    assert.deepEqual(codesOf(same.body), ['DISPATCH_TARGET_NOT_FOUND'])
  })

  it('have one version for each change of the definition', async () => {
    const odd = { ...states[0], position: { x: 1, y: 2 } }
    const flow = await made({ states: [odd, ...states.slice(1)], version_label: 'first' })
    const path = `/workflows/${flow.id}`
    assert.equal(
      (await key.patch(path, { description: 'x', name: `${flow.name} b`, states: flow.states })).body.version,
      1,
    )
    assert.equal(
      (await key.patch(path, { payload_schema: { type: 'object' }, version_label: 'second' })).body.version,
      2,
    )
    const listed = (await key.get(`${path}/versions`)).body
    assert.deepEqual(
      listed.data.map(({ version, label }: any) => [version, label]),
      [
        [2, 'second'],
        [1, 'first'],
      ],
    )
    const first = (await key.get(`${path}/versions/1`)).body
    assert.match(first.id, /^wfl_ver_/)
    assert.deepEqual(first.config, { states: flow.states, transitions, payload_schema: null })
    assert.equal((await key.get(`${path}/versions/abc`)).status, 400)
    assert.equal((await key.get(`${path}/versions/99`)).body.error.code, 'RESOURCE_NOT_FOUND')
    const { body: compared } = await key.get(`${path}/versions/compare?from=1&to=2`)
    assert.deepEqual(compared.changes, [
      { path: 'payload_schema', op: 'changed', before: null, after: { type: 'object' } },
    ])
    const restored = await key.post(`${path}/versions/1/restore`)
    assert.deepEqual([restored.status, restored.body.version, restored.body.name], [200, 3, `${flow.name} b`])
    assert.equal(restored.body.payload_schema, null)
    assert.equal((await key.get(`${path}/versions/3`)).body.label, 'restored from v1')
    assert.equal((await key.post(`${path}/versions/1/restore`)).body.version, 3)
    assert.equal((await key.get(`${path}/versions`)).body.total, 3)
  })

  it('are compared including the order of states and transitions', async () => {
    const { id } = await made()
    const path = `/workflows/${id}`
    const [draft, review, done] = states
    assert.equal((await key.patch(path, { states: [draft, done, review] })).body.version, 2)
    assert.deepEqual((await key.get(`${path}/versions/compare`)).body.changes, [
      { path: 'states', op: 'changed', before: ['draft', 'review', 'done'], after: ['draft', 'done', 'review'] },
    ])
  })

  it('have consecutive versions for concurrent changes', async () => {
    const { id } = await made()
    const replies = await Promise.all(
      Array.from({ length: 8 }, (_, n) => key.patch(`/workflows/${id}`, { payload_schema: { title: `${n}` } })),
    )
    assert.deepEqual(replies.map(({ body }) => body.version).sort(), [2, 3, 4, 5, 6, 7, 8, 9])
  })
})
