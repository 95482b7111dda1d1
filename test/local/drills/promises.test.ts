import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { loadSeconds } from '#local/drills/drill.ts'
import { DRILLS } from '#local/drills/index.ts'
import { KINDS } from '#local/drills/kinds.ts'
import type { Ledger } from '#local/drills/load.ts'
import { DRILL_NAMES } from '#local/drills/names.ts'
import { type Evidence, judge, PROMISES, type PromiseName } from '#local/drills/promises.ts'
import { balance, DELIVERED, type Observed } from '#local/drills/reconcile.ts'

const root = path.resolve(import.meta.dirname, '../../..')
const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')

const NAMES = Object.keys(PROMISES) as PromiseName[]
const listed = (rows: any[]) => ({ rows, total: rows.length })

/** One acknowledged item of each kind, with everything that it causes. */
function perfect() {
  const ids = KINDS.map((_, index) => `work_${String(index).padStart(26, '0')}`)
  const at = Date.now()
  const ledger: Ledger = Object.fromEntries(
    KINDS.map(({ name }, index) => [
      name,
      { acknowledged: [{ id: ids[index], sentAt: at, answeredAt: at + 10 }], errors: {}, unanswered: 0 },
    ]),
  )
  const SUCCEEDED: Record<string, object> = {
    'orchestration runs': { status: 'succeeded' },
    'trigger firings': { status: 'succeeded' },
    tasks: { status: 'closed' },
    ingestions: { status: 'ready' },
    'memory writes': { action: 'created' },
  }
  const records = Object.fromEntries(
    KINDS.map(({ name }, index) => [name, listed([{ id: ids[index], status: 'completed', ...SUCCEEDED[name] }])]),
  )
  const idOf = (name: string) => ids[KINDS.findIndex(kind => kind.name === name)]
  const actor = idOf(DELIVERED.kind)
  const calls = KINDS.flatMap(({ calls }, index) =>
    calls
      ? Array.from({ length: calls.count }, (_, each) => ({
          path: calls.path,
          key: `${ids[index]}:${each}`,
          at,
          resource: null as string | null,
        }))
      : [],
  )
  const sumOf = (meter: 'llm_tokens' | 'tool_execution') =>
    KINDS.reduce((sum, { usage }) => sum + (usage?.[meter] ?? 0), 0)
  const usage = (meter_type: 'llm_tokens' | 'tool_execution', components: object[]) =>
    Array.from({ length: sumOf(meter_type) }, () => ({ meter_type, event_count: 1, components }))
  const usageEvents = [
    ...usage('llm_tokens', [{ component: 'output_tokens', quantity: 1 }]),
    ...usage('tool_execution', []),
  ]
  const observed: Observed = {
    records,
    calls: [...calls, { path: DELIVERED.path, key: 'evt_1', at, resource: actor }],
    modelCalls: Object.fromEntries(KINDS.flatMap(({ model }) => (model ? [[model.lane, model.count]] : []))),
    events: listed([{ id: 'evt_1' }]),
    deliveries: listed([{ status: 'completed', payload: { data: { id: actor } } }]),
    usageEvents: listed(usageEvents),
    usageTotals: { event_count: usageEvents.length, output_tokens: sumOf('llm_tokens') },
    audit: { valid: true, checked: 1 },
    messages: 2,
    internals: { deadLetters: 0, undispatched: 0, wrongUsageDays: 0 },
  }
  return { ledger, observed, refusals: [] as string[], stalls: [] as string[], uncleanStops: [] as string[], idOf }
}

type Made = ReturnType<typeof perfect>

const judged = ({ ledger, observed, ...made }: Made) => {
  const reports = KINDS.map(kind => balance(kind, ledger, observed))
  const evidence: Evidence = { kinds: KINDS, reports, ledger, observed, ...made }
  return judge(NAMES, evidence).flatMap(({ name, broken_by }) => broken_by.map(each => `${name}: ${each}`))
}

describe('promises of drills', () => {
  it('are in the table of docs/operations.md, and drills in docs/drills.md', () => {
    const [, table = ''] = /^\| Promise \| Meaning \|\n.*\n((?:\|.*\n)+)/m.exec(read('docs/operations.md')) ?? []
    assert.deepEqual(
      [...table.matchAll(/^\| `([\w-]+)` \|/gm)].map(([, name]) => name),
      NAMES,
    )
    const [, drills = ''] = /^\| Drill \| Breaks \|\n.*\n((?:\|.*\n)+)/m.exec(read('docs/drills.md')) ?? []
    assert.deepEqual(
      [...drills.matchAll(/^\| `([\w-]+)` \|/gm)].map(([, name]) => name),
      [...DRILL_NAMES],
    )
    assert.deepEqual(
      Object.entries(DRILLS).map(([name, drill]) => [name, drill.name]),
      DRILL_NAMES.map(name => [name, name]),
    )
  })

  it('are checked with a longer load at night, or for the given seconds', () => {
    for (const drill of Object.values(DRILLS)) {
      assert.equal(loadSeconds(drill, {}), drill.seconds)
      assert.ok(drill.seconds <= 60 && loadSeconds(drill, { profile: 'nightly' }) >= 240, drill.name)
      assert.equal(loadSeconds(drill, { profile: 'nightly', seconds: 5 }), 5)
    }
  })

  it('are held by work that is complete', () => assert.deepEqual(judged(perfect()), []))

  const broken: [what: string, doctor: (made: Made) => unknown, by: string[]][] = [
    [
      'a record that is missing',
      ({ observed }) => (observed.records.tasks = listed([])),
      ['nothing-lost: tasks: 1 lost'],
    ],
    [
      'a record that has failed',
      ({ observed }) => (observed.records.turns.rows[0].status = 'failed'),
      ['nothing-lost: turns: 1 lost'],
    ],
    ['a request that was never answered', ({ ledger }) => ledger.tasks.unanswered++, ['nothing-lost: tasks: 1 lost']],
    [
      'a record that no request created',
      ({ observed }) => (observed.records.tasks = listed([...observed.records.tasks.rows, { id: 'task_x' }])),
      ['nothing-doubled: tasks: 1 doubled'],
    ],
    [
      'an ID that two requests got',
      ({ ledger }) => ledger['memory writes'].acknowledged.push(...ledger['memory writes'].acknowledged),
      ['nothing-doubled: memory writes: 1 doubled'],
    ],
    [
      'a call with another key',
      ({ observed, idOf }) =>
        (observed.calls = [
          ...observed.calls,
          { path: '/tools/tasks', key: `${idOf('tasks')}:again`, at: 0, resource: null },
        ]),
      ['nothing-doubled: tasks: 1 doubled'],
    ],
    [
      'a call that no request accounts for',
      ({ observed }) =>
        (observed.calls = [...observed.calls, { path: '/tools/tasks', key: 'undefined', at: 0, resource: null }]),
      ['nothing-doubled: tasks: 1 doubled'],
    ],
    [
      'a call that was repeated with its key',
      ({ observed }) =>
        (observed.calls = [...observed.calls, observed.calls.find(({ path }) => path === '/tools/tasks')!]),
      ['stops-cleanly: tasks: 1 repeated calls'],
    ],
    [
      'a delivery that did not arrive',
      ({ observed }) => (observed.calls = observed.calls.filter(({ path }) => path !== DELIVERED.path)),
      ['nothing-lost: webhook events: 1 lost'],
    ],
    [
      'a message that was stored twice',
      ({ observed }) => observed.messages++,
      ['nothing-doubled: messages: 3, expected 2'],
    ],
    ['work that does not progress', ({ stalls }) => stalls.push('open work'), ['resumes: open work']],
    [
      'a process that fails when it stops',
      ({ uncleanStops }) => uncleanStops.push('web exited with 1'),
      ['stops-cleanly: web exited with 1'],
    ],
    [
      'a missing usage event',
      ({ observed }) => (observed.usageEvents = listed(observed.usageEvents.rows.slice(0, -1))),
      [
        'usage-exact: usage events of tool_execution: 5, expected 6',
        'usage-exact: events of the usage report: 10, expected 9',
      ],
    ],
    [
      'a usage report that differs',
      ({ observed }) => observed.usageTotals.output_tokens++,
      ['usage-exact: output tokens of the usage report: 5, expected 4'],
    ],
    [
      'sums of usage that differ',
      ({ observed }) => (observed.internals!.wrongUsageDays = 1),
      ['usage-exact: days whose sums differ from their events: 1, expected 0'],
    ],
    ['a wrong total', ({ observed }) => observed.records.tasks.total++, ['lists-exact: total of tasks: 2, expected 1']],
    [
      'a failed delivery',
      ({ observed }) => (observed.deliveries.rows[0].status = 'failed'),
      ['events-delivered: events without a completed delivery: 1, expected 0'],
    ],
    [
      'an event that was not dispatched',
      ({ observed }) => (observed.internals!.undispatched = 1),
      ['events-delivered: events that were not dispatched: 1, expected 0'],
    ],
    ['a broken chain', ({ observed }) => (observed.audit.valid = false), ['audit-intact: the hash chain is broken']],
    ['an empty chain', ({ observed }) => (observed.audit.checked = 0), ['audit-intact: the hash chain is empty']],
    [
      'a dead letter',
      ({ observed }) => (observed.internals!.deadLetters = 1),
      ['no-dead-letters: dead letters: 1, expected 0'],
    ],
    [
      'a failed request',
      ({ refusals }) => refusals.push('/tasks: INTERNAL_ERROR'),
      ['available: 1 failed requests, such as /tasks: INTERNAL_ERROR'],
    ],
    [
      'a model call that was repeated',
      ({ observed }) => observed.modelCalls.writer++,
      ['stops-cleanly: model calls of turns: 2, expected 1'],
    ],
  ]
  for (const [what, doctor, by] of broken)
    it(`are broken by ${what}`, () => {
      const made = perfect()
      doctor(made)
      assert.deepEqual(judged(made), by)
    })
})
