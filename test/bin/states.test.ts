import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { CASE_STATUSES } from '#automation/cases/model.ts'
import { NODE_STATUSES, RUN_STATUSES } from '#automation/orchestrations/runs/model.ts'
import { AUTOMATION_STATUSES, TASK_STATUSES } from '#automation/workflows/tasks/model.ts'
import { DOCUMENT_STATUSES } from '#content/documents/model.ts'
import { DELIVERY_STATUSES } from '#control/webhooks/model.ts'
import { SESSION_STATUSES } from '#conversation/sessions/model.ts'
import { APPROVAL_STATUSES } from '#execution/approvals/model.ts'
import { GENERATION_STATUSES } from '#execution/generations/model.ts'

const root = path.resolve(import.meta.dirname, '../..')
const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')

/** A place in the code that makes transitions: file below src or in sql, text in it, and `from --> to` for each. */
type Transition = [file: string, text: string, ...arrows: string[]]

type Machine = {
  heading: string
  /** Statuses by the group that the diagram draws them in; '' is the diagram itself. */
  states: Record<string, readonly string[]>
  transitions: Transition[]
  /** Finds writes of the status; each file with one must be in `transitions`. */
  writes: [folder: string, pattern: RegExp]
}

const LIVE = ['queued', 'running', 'sleeping', 'awaiting_input']
const turns = 'execution/generations'
const runs = 'automation/orchestrations/runs'
const tasks = 'automation/workflows/tasks'
const sessions = 'conversation/sessions'
const approvals = 'execution/approvals'

const MACHINES: Machine[] = [
  {
    heading: 'States of a turn',
    states: { '': GENERATION_STATUSES },
    transitions: [
      [`${turns}/request/create.ts`, 'insertTurn(', '[*] --> pending'],
      [`${turns}/request/create-store.ts`, "started ? 'in_progress'", '[*] --> in_progress'],
      [`${turns}/request/create-paused.ts`, 'startPaused(', '[*] --> requires_action'],
      [
        `${turns}/loop/turn-store.ts`,
        "set status = 'in_progress', attempt",
        'pending --> in_progress',
        'in_progress --> in_progress',
      ],
      [`${turns}/loop/turn-store.ts`, "set status = 'requires_action'", 'in_progress --> requires_action'],
      [`${turns}/store.ts`, "set status = 'in_progress', handed_back = true", 'requires_action --> in_progress'],
      [`${turns}/loop/settle-turn.ts`, 'completeTurn(', 'in_progress --> completed', 'completed --> [*]'],
      [
        `${turns}/request/cancel-turn.ts`,
        'settlementParts(',
        'pending --> failed',
        'in_progress --> failed',
        'requires_action --> failed',
        'failed --> [*]',
      ],
      [
        `${turns}/erase/purge-store.ts`,
        "when t.status = 'requires_action' then 'failed'",
        'requires_action --> failed',
      ],
    ],
    writes: [turns, /update generations (t )?set status/],
  },
  {
    heading: 'States of a run',
    states: { '': RUN_STATUSES.filter(status => !LIVE.includes(status)), live: LIVE },
    transitions: [
      [`${runs}/commands/start-run.ts`, "status: 'queued'", '[*] --> live', 'live: [*] --> queued'],
      [
        `${runs}/engine/advance.ts`,
        'run.status = runStatus(',
        ...LIVE.flatMap(from => LIVE.filter(to => to !== from).map(to => `live: ${from} --> ${to}`)),
      ],
      [`${runs}/engine/advance.ts`, "#setTerminal('succeeded')", 'live --> succeeded', 'succeeded --> [*]'],
      [`${runs}/engine/advance.ts`, "this.stop('failed'", 'live --> failed', 'failed --> [*]'],
      [`${runs}/engine/advance.ts`, "this.stop('expired'", 'live --> expired', 'expired --> [*]'],
      [`${runs}/commands/tree-store.ts`, "set status = 'cancelled'", 'live --> cancelled', 'cancelled --> [*]'],
    ],
    writes: [runs, /run\.status = |update orchestration_runs t set status|^ {4}status: 'queued'/m],
  },
  {
    heading: 'States of a task',
    states: { '': TASK_STATUSES, open: AUTOMATION_STATUSES },
    transitions: [
      [`${tasks}/create.ts`, 'enterState(', '[*] --> open', '[*] --> closed'],
      [
        `${tasks}/task-change.ts`,
        "status: terminal ? 'closed' : 'open'",
        'open --> closed',
        'closed --> [*]',
        'open: [*] --> running',
        'open: [*] --> paused',
      ],
      [
        `${tasks}/task-change.ts`,
        "isPaused ? 'paused' : 'running'",
        'open: failed --> running',
        'open: failed --> paused',
        'open: unrouted --> running',
        'open: unrouted --> paused',
      ],
      [`${tasks}/automation.ts`, "verb: 'automation_retrying'", 'open: running --> running'],
      [`${tasks}/automation.ts`, "automation_status: 'completed'", 'open: running --> completed'],
      [`${tasks}/automation.ts`, "automation_status: 'failed'", 'open: running --> failed'],
      [`${tasks}/automation.ts`, "automation_status: 'unrouted'", 'open: running --> unrouted'],
      [`${tasks}/execute-dispatch.ts`, "automation_status: 'paused'", 'open: running --> paused'],
      [`${tasks}/write.ts`, "automation_status: 'paused'", 'open: running --> paused'],
      [`${tasks}/pause.ts`, "automation_status: 'running'", 'open: paused --> running'],
    ],
    writes: [tasks, /automation_status: ('|null|\w+ \?)/],
  },
  {
    heading: 'States of a delivery',
    states: { '': DELIVERY_STATUSES },
    transitions: [
      ['control/webhooks/delivery-store.ts', 'insert into webhook_deliveries', '[*] --> queued'],
      ['control/webhooks/deliver.ts', "decision: 'retry', status: 'queued'", 'queued --> queued'],
      [
        'control/webhooks/deliver.ts',
        "decision: 'done', status: 'completed'",
        'queued --> completed',
        'completed --> [*]',
      ],
      ['control/webhooks/deliver.ts', "decision: 'failed', status: 'failed'", 'queued --> failed', 'failed --> [*]'],
      ['control/webhooks/delivery-store.ts', "when l.failed then 'failed'", 'queued --> failed'],
    ],
    writes: ['control/webhooks', /^ +status = /m],
  },
  {
    heading: 'States of a session',
    states: { '': SESSION_STATUSES },
    transitions: [
      [`${sessions}/create.ts`, 'insertSessionWithConversation(', '[*] --> open'],
      [`${sessions}/create.ts`, "updateSession(tx, parent.id, { status: 'closed' })", 'open --> closed'],
      [`${sessions}/change.ts`, "change.status === 'closed'", 'open --> closed'],
      [`${sessions}/change.ts`, "change.status === 'open'", 'closed --> open'],
      [`${sessions}/hide.ts`, "body: { status: 'closed' }", 'open --> closed'],
      [`${sessions}/store.ts`, "set status = 'expired'", 'open --> expired', 'expired --> [*]'],
    ],
    writes: [sessions, /updateSession\(tx, \S+ \{ status|change\.status === '|body: \{ status|sessions t set status/],
  },
  {
    heading: 'States of an approval',
    states: { '': APPROVAL_STATUSES },
    transitions: [
      [`${approvals}/insert-approval.ts`, 'insertUnlessTaken(', '[*] --> pending'],
      [`${approvals}/resolve.ts`, "status: 'approved' | 'rejected'", 'pending --> approved', 'pending --> rejected'],
      [`${approvals}/store.ts`, 'set status = ${to.status}', 'approved --> [*]', 'rejected --> [*]'],
      [`${approvals}/store.ts`, "set status = 'expired'", 'pending --> expired', 'expired --> [*]'],
    ],
    writes: [approvals, /update approvals t set status/],
  },
  {
    heading: 'States of a document',
    states: { '': ['withdrawn'], current: DOCUMENT_STATUSES.filter(status => status !== 'withdrawn') },
    transitions: [
      ['content/documents/create.ts', "status: 'ready'", '[*] --> current', 'current: [*] --> ready'],
      [
        'content/ingestion/start-ingestion.ts',
        "status: 'pending'",
        'current: [*] --> pending',
        'current: processing --> pending',
        'current: ready --> pending',
        'current: failed --> pending',
      ],
      [
        'content/ingestion/ingest.ts',
        "status = 'processing'",
        'current: pending --> processing',
        'current: processing --> processing',
      ],
      ['content/ingestion/write-chunks.ts', "status: 'ready'", 'current: processing --> ready'],
      [
        'content/ingestion/fail-ingestion.ts',
        "status: 'failed'",
        'current: pending --> failed',
        'current: processing --> failed',
      ],
      [
        'content/documents/update-document.ts',
        "status: 'ready'",
        'current: pending --> ready',
        'current: failed --> ready',
        'withdrawn --> current',
      ],
      ['content/documents/versions.ts', "status: 'withdrawn'", 'current --> withdrawn'],
    ],
    writes: ['content', /status: '(pending|ready|failed|withdrawn)'|^ +status = 'processing',/m],
  },
  {
    heading: 'States of a node',
    states: { '': NODE_STATUSES },
    transitions: [
      [`${runs}/engine/start-node.ts`, "status: 'running'", '[*] --> running'],
      [`${runs}/engine/start-node.ts`, "row.status = 'waiting'", 'running --> waiting'],
      [`${runs}/engine/start-node.ts`, "row.status = 'requires_action'", 'running --> requires_action'],
      [`${runs}/engine/advance.ts`, "status: 'waiting'", '[*] --> waiting'],
      [`${runs}/engine/advance.ts`, "status: 'failed'", '[*] --> failed'],
      [`${runs}/engine/advance.ts`, "status: 'skipped'", '[*] --> skipped', 'skipped --> [*]'],
      [
        `${runs}/engine/advance.ts`,
        "row.status = 'completed'",
        'running --> completed',
        'waiting --> completed',
        'requires_action --> completed',
        'completed --> [*]',
      ],
      [
        `${runs}/engine/advance.ts`,
        "row.status = 'failed'",
        'running --> failed',
        'requires_action --> failed',
        'failed --> [*]',
      ],
      [
        `${runs}/engine/advance.ts`,
        "row.status = 'cancelled'",
        'running --> cancelled',
        'waiting --> cancelled',
        'requires_action --> cancelled',
        'cancelled --> [*]',
      ],
      [`${runs}/engine/end-node.ts`, "row.status = 'waiting'", 'running --> waiting'],
      [`${runs}/engine/collect-outcomes.ts`, "row.status = 'running'", 'waiting --> running'],
      [
        `${runs}/engine/collect-outcomes.ts`,
        "turn.status === 'requires_action'",
        'running --> requires_action',
        'requires_action --> running',
      ],
      [`${runs}/nodes/approval.ts`, "row.status = 'requires_action'", 'running --> requires_action'],
      [`${runs}/nodes/approval.ts`, "row.status = 'running'", 'requires_action --> running'],
    ],
    writes: [runs, /row\.status = '|(this|advance)\.add\(node/],
  },
  {
    heading: 'States of a case',
    states: { '': CASE_STATUSES },
    transitions: [
      ['automation/cases/create.ts', 'insert', '[*] --> open'],
      [
        'automation/playbooks/executions/start.ts',
        "status: 'in_progress'",
        'open --> in_progress',
        'resolved --> in_progress',
      ],
      [
        'automation/playbooks/executions/run-driver.ts',
        'caseStatus(row)',
        'in_progress --> waiting',
        'waiting --> in_progress',
        'in_progress --> resolved',
        'waiting --> resolved',
        'in_progress --> open',
        'waiting --> open',
      ],
      [
        'automation/cases/operations.ts',
        'moveCase(',
        'open --> resolved',
        'open --> closed',
        'resolved --> closed',
        'resolved --> open',
        'closed --> open',
      ],
      ['automation/cases/merge.ts', "status: 'closed'", 'open --> closed', 'resolved --> closed'],
      ['automation/cases/change.ts', 'export async function moveCase'],
    ],
    writes: ['automation', /moveCase\(|caseKind\.update\(tx, id, \{\n\s+status/],
  },
]

/** Arrows and states of the diagram below a heading of flows.md; states of a group have its name in front. */
function diagramOf(heading: string): { arrows: string[]; states: Map<string, Set<string>> } {
  const section = read('docs/flows.md').split(`\n### ${heading}\n`)[1] ?? assert.fail(`flows.md has no ${heading}`)
  const [, diagram] = /```mermaid\nstateDiagram-v2\n(.*?)```/s.exec(section) ?? assert.fail(`${heading} has no diagram`)
  const arrows: string[] = []
  const states = new Map<string, Set<string>>()
  let group = ''
  for (const line of diagram.trimEnd().split('\n')) {
    const [, opened] = /^ {2}state (\w+) \{$/.exec(line) ?? []
    if (opened !== undefined || line === '  }') {
      group = opened ?? ''
      continue
    }
    const [, from, to] = /^ +(\S+) --> (\S+)(?: : .+)?$/.exec(line) ?? assert.fail(`${heading}: ${line}`)
    arrows.push(`${group && `${group}: `}${from} --> ${to}`)
    for (const state of [from, to]) if (state !== '[*]') states.set(group, (states.get(group) ?? new Set()).add(state))
  }
  return { arrows, states }
}

describe('the state diagrams', () => {
  for (const { heading, states, transitions, writes } of MACHINES)
    describe(heading, () => {
      it('has every status, and no other state', () => {
        const drawn = diagramOf(heading).states
        const groups = Object.keys(states).filter(name => name !== '' && !states[''].includes(name))
        for (const group of groups) drawn.get('')?.delete(group)
        assert.deepEqual([...drawn.keys()].sort(), Object.keys(states).sort())
        for (const [group, statuses] of Object.entries(states))
          assert.deepEqual([...(drawn.get(group) ?? [])].sort(), [...statuses].sort(), group)
      })

      it('has the transitions of the code, and no other arrow', () => {
        const made = new Set(transitions.flatMap(([, , ...arrows]) => arrows))
        assert.deepEqual(diagramOf(heading).arrows.sort(), [...made].sort())
        for (const [file, text] of transitions) assert.ok(read(`src/${file}`).includes(text), `${file}: ${text}`)
      })

      it('lists every file that writes the status', () => {
        const [folder, pattern] = writes
        const files = fs.readdirSync(path.join(root, 'src', folder), { recursive: true, encoding: 'utf8' })
        const writing = files
          .map(name => `${folder}/${name}`)
          .filter(name => name.endsWith('.ts') && pattern.test(read(`src/${name}`)))
        const known = new Set(transitions.map(([file]) => file))
        assert.ok(writing.length > 0)
        assert.deepEqual(
          writing.filter(file => !known.has(file)),
          [],
        )
      })
    })
})
