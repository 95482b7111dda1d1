import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startRunApp } from './fixtures.ts'
import { listed } from './orchestration-support.ts'

const manual = (key: string, more: object = {}) => ({ key, title: key, type: 'manual', ...more })

describe('playbooks', () => {
  const app = forSuite(() => startRunApp({ workers: [] }))
  const key = forSuite(
    async () => (await app.projectWith(['playbooks:*', 'tools:CreateTool', 'orchestrations:*', 'events:*'])).key,
  )
  let counter = 0

  const made = (steps: object[], more: object = {}) =>
    createdBy(key, '/playbooks', { name: `playbook ${++counter}`, steps, ...more })
  const findings = async (body: object): Promise<string[]> => {
    const reply = await key.post('/playbooks/validate', body)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    assert.equal(reply.body.valid, reply.body.problems.length === 0)
    return listed(reply.body.problems)
  }

  it('refuses to create an invalid playbook, and writes nothing', async () => {
    const steps = [
      manual('one', { next: 'two' }),
      manual('two', { next: 'one' }),
      {
        key: 'size',
        title: 'Large?',
        type: 'branch',
        rules: [{ when: { var: 'case.fields.amount' }, go_to: 'nowhere' }],
      },
    ]
    const validated = await key.post('/playbooks/validate', { steps })
    assert.equal(validated.status, 200)
    assert.equal(validated.body.valid, false)
    assert.deepEqual(listed(validated.body.problems), [
      'TARGET_NOT_FORWARD steps[1].next',
      'TARGET_UNKNOWN steps[2].rules[0].go_to',
    ])
    const refused = await key.post('/playbooks', { name: 'refused', steps })
    assert.equal(refused.status, 400)
    assert.equal(refused.body.error.code, 'PLAYBOOK_VALIDATION_FAILED')
    assert.deepEqual(refused.body.error.meta.problems, validated.body.problems)
    await key.post('/playbooks/validate', { steps: [manual('one')] })
    assert.equal((await key.get('/playbooks?name=refused')).body.total, 0)
  })

  it('finds all problems of steps', async () => {
    assert.deepEqual(await findings({ steps: [] }), ['STEPS_REQUIRED steps'])
    assert.deepEqual(
      await findings({
        steps: [
          { key: 'Bad', title: ' ', type: 'nothing' },
          { key: 'end', title: 't', type: 'manual' },
          { key: 'a__when', title: 't', type: 'manual' },
          manual('same', { rules: [], unknown: 1, retry: { max_attempts: 2 } }),
          manual('same', { due_seconds: 0 }),
          { key: 'call', title: 't', type: 'call_tool', retry: { max_attempts: 11 } },
          { key: 'waits', title: 't', type: 'wait' },
          { key: 'both', title: 't', type: 'wait', duration_seconds: 5, until: { var: 'case.due_at' } },
          { key: 'tests', title: 't', type: 'branch', rules: [{ when: { nope: 1 }, go_to: 'end' }], next: 'end' },
          { key: 'reads', title: 't', type: 'require_approval', reasoning: { cat: [{ var: 'steps.last.output' }] } },
          manual('last', { when: true, case_writes: { own: { var: 'steps.last.output' }, ok: { var: 'output.a' } } }),
        ],
        case_schema: { type: 'nothing' },
        input_schema: 5,
        outcome: { var: 'steps.none.output' },
      }),
      [
        'EXPRESSION_MALFORMED steps[10].when',
        'EXPRESSION_MALFORMED steps[8].rules[0].when',
        'RETRY_INVALID steps[5].retry.max_attempts',
        'SCHEMA_INVALID case_schema',
        'SCHEMA_INVALID input_schema',
        'STEP_FIELD_INVALID steps[4].due_seconds',
        'STEP_FIELD_INVALID steps[7].until',
        'STEP_FIELD_REQUIRED steps[5].tool_id',
        'STEP_FIELD_REQUIRED steps[6].duration_seconds',
        'STEP_FIELD_UNKNOWN steps[3].retry',
        'STEP_FIELD_UNKNOWN steps[3].rules',
        'STEP_FIELD_UNKNOWN steps[3].unknown',
        'STEP_FIELD_UNKNOWN steps[8].next',
        'STEP_KEY_DUPLICATE steps[4].key',
        'STEP_KEY_INVALID steps[0].key',
        'STEP_KEY_INVALID steps[1].key',
        'STEP_KEY_INVALID steps[2].key',
        'STEP_OUTPUT_UNAVAILABLE outcome',
        'STEP_OUTPUT_UNAVAILABLE steps[10].case_writes.own',
        'STEP_OUTPUT_UNAVAILABLE steps[9].reasoning',
        'STEP_TITLE_REQUIRED steps[0].title',
        'STEP_TYPE_INVALID steps[0].type',
      ],
    )
    const waits = (key: string, event: object) => ({ key, title: 't', type: 'wait', event })
    assert.deepEqual(
      await findings({
        steps: [
          waits('form', { pattern: 'Cases.Created' }),
          waits('none', { pattern: 'cases.exploded' }),
          waits('filter', { pattern: '*', filter: { var: 'steps.last.output' } }),
          waits('literal', { pattern: 'billing.paid', filter: true }),
          waits('long', { pattern: 'cases.*', timeout_seconds: 0, other: 1 }),
          waits('empty', {}),
          { ...waits('last', { pattern: '*' }), duration_seconds: 1 },
        ],
      }),
      [
        'EXPRESSION_MALFORMED steps[3].event.filter',
        'STEP_FIELD_INVALID steps[0].event.pattern',
        'STEP_FIELD_INVALID steps[1].event.pattern',
        'STEP_FIELD_INVALID steps[4].event.other',
        'STEP_FIELD_INVALID steps[4].event.timeout_seconds',
        'STEP_FIELD_INVALID steps[5].event.pattern',
        'STEP_FIELD_INVALID steps[6].event',
        'STEP_OUTPUT_UNAVAILABLE steps[2].event.filter',
      ],
    )
    const unreachable = [manual('a', { next: 'c' }), manual('b'), manual('c')]
    assert.deepEqual(await findings({ steps: unreachable }), ['STEP_UNREACHABLE steps[1]'])
    const many = Array.from({ length: 101 }, (_, index) => manual(`s${index}`))
    assert.deepEqual(await findings({ steps: many }), ['LIMIT_EXCEEDED steps'])
    for (const [field, targets] of [
      ['next', ['fail']],
      ['on_failure', ['end']],
    ] as const)
      for (const target of targets)
        assert.deepEqual(await findings({ steps: [manual('a', { [field]: target })] }), [
          `TARGET_UNKNOWN steps[0].${field}`,
        ])
  })

  it('looks up the references of steps', async () => {
    const client = await key.post('/tools', { name: 'asks', type: 'client' })
    const platform = await key.post('/tools', { name: 'platform', type: 'platform', actions: ['list-actors'] })
    assert.equal(platform.status, 201, JSON.stringify(platform.body))
    const absent = { agent_id: 'agent_none', orchestration_id: 'orch_none', decider_id: 'dcd_none' }
    const { agent_id, orchestration_id, decider_id } = absent
    assert.deepEqual(
      await findings({
        steps: [
          { key: 'a', title: 'a', type: 'instruct_agent', agent_id },
          { key: 'b', title: 'b', type: 'run_orchestration', orchestration_id },
          { key: 'c', title: 'c', type: 'ask_decider', decider_id },
          { key: 'd', title: 'd', type: 'call_tool', tool_id: client.body.id },
          { key: 'e', title: 'e', type: 'call_tool', tool_id: platform.body.id },
        ],
      }),
      [
        'REFERENCE_INVALID steps[3].tool_id',
        'REFERENCE_INVALID steps[4].operation_id',
        'REFERENCE_NOT_FOUND steps[0].agent_id',
        'REFERENCE_NOT_FOUND steps[1].orchestration_id',
        'REFERENCE_NOT_FOUND steps[2].decider_id',
      ],
    )
    const playbook = await made([manual('a')])
    const other = await app.projectWith(['playbooks:*'])
    assert.equal((await other.key.get(`/playbooks/${playbook.id}`)).status, 404)
  })

  it('creates, restores and compares versions', async () => {
    const playbook = await made([manual('a', { when: { '==': [{ var: 'case.fields.a_b' }, 1] } })], {
      version_label: 'first',
    })
    assert.equal(playbook.version, 1)
    assert.equal(playbook.resolve_case, true)
    assert.ok(!('orchestration_id' in playbook))
    const patch = async (body: object) => {
      const reply = await key.patch(`/playbooks/${playbook.id}`, body)
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      return reply.body
    }
    assert.equal((await patch({ description: 'about', steps: playbook.steps })).version, 1)
    assert.equal((await patch({ steps: [manual('a'), manual('b')] })).version, 2)
    assert.equal((await patch({ resolve_case: false })).version, 3)
    const compared = await key.get(`/playbooks/${playbook.id}/versions/compare?from=1&to=2`)
    assert.ok(compared.body.changes.some(({ path }: { path: string }) => path.startsWith('steps.b')))
    const restored = await key.post(`/playbooks/${playbook.id}/versions/1/restore`, {})
    assert.equal(restored.status, 200, JSON.stringify(restored.body))
    assert.equal(restored.body.version, 4)
    assert.equal(restored.body.description, 'about')
    assert.deepEqual(restored.body.steps, playbook.steps)
    assert.equal((await key.post(`/playbooks/${playbook.id}/versions/4/restore`, {})).body.version, 4)
    const versions = await key.get(`/playbooks/${playbook.id}/versions`)
    assert.deepEqual(
      versions.body.data.map(({ version, label }: { version: number; label: string | null }) => [version, label]),
      [
        [4, 'restored from v1'],
        [3, null],
        [2, null],
        [1, 'first'],
      ],
    )
    assert.equal((await key.get(`/playbooks/${playbook.id}/versions/abc`)).status, 400)
    assert.equal((await key.get(`/playbooks/${playbook.id}/versions/99`)).status, 404)
    const taken = await key.post('/playbooks', { name: playbook.name, steps: [manual('a')] })
    assert.equal(taken.body.error.code, 'NAME_CONFLICT')
    assert.equal((await key.patch(`/playbooks/${playbook.id}`, { nothing: 1 })).body.error.code, 'VALIDATION_FAILED')
  })

  it('is listed in pages of less than 16 MiB', async () => {
    const { key } = await app.projectWith(['playbooks:*'])
    const steps = Array.from({ length: 13 }, (_, n) => manual(`a${n}`, { instructions: 'x'.repeat(20_000) }))
    for (let n = 0; n < 70; n++) {
      const reply = await key.post('/playbooks', { name: `large ${n}`, steps })
      assert.equal(reply.status, 201, JSON.stringify(reply.body))
    }
    const { data, total, limit } = (await key.get('/playbooks?limit=100')).body
    assert.deepEqual([data.length, total, limit], [65, 70, 65])
  })

  it('has a managed graph that no route shows', async () => {
    const playbook = await made([manual('a')])
    assert.equal((await key.get('/orchestrations')).body.total, 0)
    const orchestration_id: any = await app.pool.oneFirst(
      sql.unsafe`select orchestration_id from playbooks where id = ${playbook.id}`,
    )
    for (const path of ['', '/versions', '/diagram'])
      assert.equal((await key.get(`/orchestrations/${orchestration_id}${path}`)).status, 404)
    const started = await key.post('/orchestration-runs', { orchestration_id })
    assert.equal(started.body.error.code, 'ORCHESTRATION_NOT_FOUND')
    assert.equal((await key.delete(`/playbooks/${playbook.id}`)).status, 204)
    assert.equal(
      await app.pool.oneFirst(sql.unsafe`select count(*) from orchestrations where id = ${orchestration_id}`),
      0,
    )
  })
})
