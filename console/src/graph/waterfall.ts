import type { GenerationListed, TraceNode, Transcript } from '@muster/client'
import * as strings from '#strings.ts'
import type { Attempt, LiveRun } from './run-state.ts'

export type ToolCall = {
  id: string
  tool_name: string
  args: unknown
  result?: unknown
  error?: { code: string; message: string; meta?: unknown } | null
  started_at?: string
  completed_at?: string
}
export type Step = Transcript['steps'][number]

/** What a row of the waterfall is about. */
export type Subject =
  | { kind: 'run'; run: LiveRun }
  | { kind: 'node'; run: LiveRun; attempt: Attempt }
  | { kind: 'turn'; turn: GenerationListed; transcript?: Transcript }
  | { kind: 'retrieval'; transcript: Transcript }
  | { kind: 'step'; turnId: string; step: Step }
  | { kind: 'model'; turnId: string; step: Step }
  | { kind: 'tool'; call: ToolCall }

/** A row of the waterfall, with times in milliseconds. */
export type WaterfallRow = {
  id: string
  level: number
  name: string
  status: string
  /** When it began to wait for a worker, if it did. */
  queuedAt?: number
  from: number
  /** Null while it runs. */
  to: number | null
  /** Whether the times belong to the row itself, and not of the step around it. */
  isExact: boolean
  tokens?: number
  cost?: number | null
  isOpen?: boolean
  subject: Subject
}

export const isRunning = ({ status }: Pick<GenerationListed, 'status'>): boolean =>
  status === 'pending' || status === 'in_progress'

/** A node of a trace tree, as it comes with its generations. */
type Tree = TraceNode & { generations?: GenerationListed[]; children: Tree[] }

/** Returns the turns of a trace tree, the earliest first. */
export function turnsOf(tree: TraceNode): GenerationListed[] {
  const walk = ({ generations = [], children }: Tree): GenerationListed[] => [...generations, ...children.flatMap(walk)]
  return walk(tree as Tree).toSorted((one, other) => one.created_at.localeCompare(other.created_at))
}

const time = (at: string): number => Date.parse(at)

/** Returns the calls of a step with their results. */
export const callsOf = ({ tool_calls, tool_results }: Step): ToolCall[] =>
  (tool_calls as ToolCall[]).map(call => ({
    ...call,
    ...(tool_results as (Partial<ToolCall> & { tool_call_id: string })[]).find(
      ({ tool_call_id }) => tool_call_id === call.id,
    ),
    id: call.id,
  }))

/** Returns the rows of a turn, its steps and the turns that it started, as far as they are open. */
export function waterfallRows(
  turns: GenerationListed[],
  transcripts: ReadonlyMap<string, Transcript>,
  run: LiveRun | undefined,
  closed: ReadonlySet<string>,
  nameOf: (agentId: string) => string,
): WaterfallRow[] {
  const ids = new Set(turns.map(({ id }) => id))
  const roots = turns.filter(({ initiator_generation_id: by }) => by === null || !ids.has(by))
  const turnRows = (turn: GenerationListed, level: number): WaterfallRow[] => {
    const { id, agent_id, status, created_at, started_at, completed_at, usage } = turn
    const transcript = transcripts.get(id)
    const isOpen = !closed.has(id)
    const from = time(started_at ?? created_at)
    const row: WaterfallRow = {
      id,
      level,
      name: nameOf(agent_id),
      status,
      queuedAt: time(created_at),
      from: started_at ? from : Date.now(),
      to: completed_at ? time(completed_at) : null,
      isExact: true,
      tokens: usage ? usage.input_tokens + usage.output_tokens : undefined,
      cost: usage?.cost_usd,
      isOpen,
      subject: { kind: 'turn', turn, transcript },
    }
    if (!isOpen) return [row]
    const nested = turns.filter(({ initiator_generation_id: by }) => by === id)
    const steps = transcript?.steps ?? []
    const rest = new Set(nested)
    const stepRows = steps.flatMap(step => {
      // A turn that began while a step ran was started by one of its calls.
      const own = [...rest].filter(({ created_at: at }) => time(at) <= time(step.completed_at))
      for (const each of own) rest.delete(each)
      return rowsOfStep(
        id,
        step,
        level + 1,
        closed,
        own.flatMap(each => turnRows(each, level + 2)),
      )
    })
    return [
      row,
      ...retrievalRows(turn, transcript, level + 1),
      ...stepRows,
      ...[...rest].flatMap(each => turnRows(each, level + 1)),
    ]
  }
  if (!run) return roots.flatMap(turn => turnRows(turn, 1))
  return runRows(run, roots, closed, turnRows)
}

/** Retrieval and preparation precede the first step. */
function retrievalRows(
  { id, started_at }: GenerationListed,
  transcript: Transcript | undefined,
  level: number,
): WaterfallRow[] {
  const first = transcript?.steps[0]
  if (!transcript?.knowledge || !started_at || !first) return []
  return [
    {
      id: `${id} retrieval`,
      level,
      name: strings.traces.retrieval(transcript.knowledge.results.length),
      status: transcript.knowledge.error ? 'failed' : 'completed',
      from: time(started_at),
      to: time(first.started_at),
      isExact: true,
      subject: { kind: 'retrieval', transcript },
    },
  ]
}

/** A step without tool calls is its model call. */
function rowsOfStep(
  turnId: string,
  step: Step,
  level: number,
  closed: ReadonlySet<string>,
  nested: WaterfallRow[],
): WaterfallRow[] {
  const { index, model, started_at, answered_at, completed_at, usage } = step
  const calls = callsOf(step)
  const id = `${turnId} ${index}`
  const totals = usage as { input_tokens: number; output_tokens: number; cost_usd: number | null } | null
  const times = { from: time(started_at), to: time(completed_at) }
  const figures = totals ? { tokens: totals.input_tokens + totals.output_tokens, cost: totals.cost_usd } : {}
  const modelName = model ?? strings.traces.model
  if (calls.length === 0)
    return [
      {
        id,
        level,
        name: strings.traces.step(index + 1, modelName),
        status: 'completed',
        ...times,
        isExact: true,
        ...figures,
        subject: { kind: 'model', turnId, step },
      },
      ...nested,
    ]
  const isOpen = !closed.has(id)
  const row: WaterfallRow = {
    id,
    level,
    name: strings.traces.stepWithTools(index + 1, calls.length),
    status: calls.some(({ error }) => error) ? 'failed' : 'completed',
    ...times,
    isExact: true,
    ...figures,
    isOpen,
    subject: { kind: 'step', turnId, step },
  }
  if (!isOpen) return [row]
  /** The times of a call in the step, or of the step where the call has none. */
  const within = (from: string | null | undefined, to: string | null | undefined) => ({
    level: level + 1,
    ...(from && to ? { from: time(from), to: time(to), isExact: true } : { ...times, isExact: false }),
  })
  return [
    row,
    {
      id: `${id} model`,
      name: modelName,
      status: 'completed',
      ...within(started_at, answered_at),
      ...figures,
      subject: { kind: 'model', turnId, step },
    },
    ...calls.map(
      (call): WaterfallRow => ({
        id: `${id} ${call.id}`,
        name: call.tool_name,
        status: call.error ? 'failed' : 'completed',
        ...within(call.started_at, call.completed_at),
        subject: { kind: 'tool', call },
      }),
    ),
    ...nested,
  ]
}

/** The attempts of a run's nodes, each with the turns that it started. */
function runRows(
  run: LiveRun,
  roots: GenerationListed[],
  closed: ReadonlySet<string>,
  turnRows: (turn: GenerationListed, level: number) => WaterfallRow[],
): WaterfallRow[] {
  const { id, status, created_at, started_at, completed_at, usage } = run
  const isOpen = !closed.has(id)
  const row: WaterfallRow = {
    id,
    level: 1,
    name: strings.traces.run,
    status,
    queuedAt: time(created_at),
    from: time(started_at ?? created_at),
    to: completed_at ? time(completed_at) : null,
    isExact: true,
    tokens: usage ? usage.input_tokens + usage.output_tokens : undefined,
    cost: usage?.cost_usd,
    isOpen,
    subject: { kind: 'run', run },
  }
  if (!isOpen) return [row]
  const attempts = (run.node_executions ?? []).filter(({ started_at }) => started_at !== null)
  const rest = new Set(roots)
  const rows = attempts.flatMap(attempt => {
    const own = roots.filter(
      turn => turn.node_id === attempt.node_id && turn.node_attempt === attempt.attempt && rest.delete(turn),
    )
    const key = `${id} ${attempt.node_id} ${attempt.attempt}`
    const isNodeOpen = own.length > 0 ? !closed.has(key) : undefined
    const node: WaterfallRow = {
      id: key,
      level: 2,
      name: attempt.attempt > 1 ? `${attempt.node_id} (${strings.runs.attempt(attempt.attempt)})` : attempt.node_id,
      status: attempt.status,
      queuedAt: time(attempt.created_at),
      from: time(attempt.started_at as string),
      to: attempt.completed_at ? time(attempt.completed_at) : null,
      isExact: true,
      isOpen: isNodeOpen,
      subject: { kind: 'node', run, attempt },
    }
    return [node, ...(isNodeOpen ? own.flatMap(turn => turnRows(turn, 3)) : [])]
  })
  return [row, ...rows, ...[...rest].flatMap(turn => turnRows(turn, 2))]
}
