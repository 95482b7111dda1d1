import { recordUsageInTx, type UsageDraft } from '../../../control/usage/meter.ts'
import { type PricedUsage, priceUsage } from '../../../control/usage/price-usage.ts'
import { AppError, type RecordedFailure, recordedFailure } from '../../../core/api/errors.ts'
import { newId } from '../../../core/api/ids.ts'
import { storableValue } from '../../../core/api/storable-text.ts'
import { isTransient } from '../../../core/db/database-errors.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { isDueSoon } from '../../../core/jobs/queue.ts'
import { eventLoopYielder } from '../../../core/process/event-loop.ts'
import type { Services } from '../../../core/process/services.ts'
import type { Graph } from '../../orchestrations/graph.ts'
import type { Node } from '../../orchestrations/model.ts'
import { cancelDescendants } from '../commands/cancel-descendants.ts'
import { isRunTerminal, longWorkState, type NodeOutcome, type RunRow } from '../model.ts'
import { requiredActions } from '../nodes/required-actions.ts'
import { runQueue } from '../queue.ts'
import { computeOf } from '../reads/usage.ts'
import { type Children, type LoadedRun, lockRunSlots, runningTrees, runUpdate } from '../store.ts'
import type { DrivenRun } from './driver.ts'
import { computeFrontier } from './frontier.ts'
import { executionsWrite, type NodeExecutionRow } from './node-execution-store.ts'
import { publishChange } from './publish-change.ts'
import { nodeRetryDelay } from './retry-delay.ts'
import { notifyRunChanged } from './run-notifications.ts'
import {
  type ExpressionState,
  isTooLarge,
  jsonBytes,
  MAX_OPEN_BYTES,
  MAX_STATE_BYTES,
  nodeFailed,
  stateWritesOf,
  withValue,
} from './run-state.ts'
import { runStatus } from './status.ts'

/** What one advance does before it lets others have the process: activations, milliseconds. */
const MAX_ACTIVATIONS = 200
const MAX_MS = 1000
/** What the nodes of one graph may all hold without being counted. */
const SMALL_BYTES = 32 * 1024

/** What an advance does with the nodes of a run. */
export type NodeSteps = {
  /** Takes note of what has happened to what is open. */
  look(advance: Advance): Promise<void>
  /** A node begins. */
  begin(advance: Advance, node: Node, at: { round: number; state: ExpressionState }): Promise<void>
}

/** One advance of a run: from its rows under its lock to its rows, in one transaction and without any other call. */
export class Advance {
  readonly services: Services
  readonly tx: Tx
  readonly graph: Graph
  readonly run: RunRow
  /** The records of whoever drives the run. */
  readonly driven: DrivenRun | null
  /** The time of the transaction, by the clock of the database; of one statement nearly. */
  readonly now: Date
  readonly limits: { max_run_depth: number | null; max_concurrent_runs: number | null }
  /** Attempts of the project that workers hold. */
  readonly held: number
  /** It is about to be stopped, and begins nothing more. */
  readonly stopping: boolean
  readonly children: ReadonlyMap<string, Children>
  /** Attempts that are not applied, as they stand. */
  readonly open = new Map<string, NodeExecutionRow>()
  /** What the run has used, to be written with this advance. */
  readonly used: PricedUsage[]
  /** Attempts that workers are to make, in the order of the definition. */
  readonly jobs: NodeExecutionRow[] = []
  /** Attempts that started runs in this advance, which `children` does not show. */
  readonly begunBelow = new Set<string>()
  readonly #changed = new Set<NodeExecutionRow>()
  readonly #projectPaused: boolean
  readonly #projectReason: string | null
  readonly #before: Pick<RunRow, 'status' | 'required_actions'>
  readonly #shape: string
  /** The time is that of the statement only once it has been written. */
  readonly #isEstimated: boolean
  /** Nothing of its attempts is in the database but what is open. */
  readonly #fresh: boolean
  readonly #started = performance.now()
  #activations = 0
  #stateBytes: number | null = null
  #openBytes: number | null = null
  #room: boolean | null = null
  /** Something is ready to begin, or to go on, and there is no room for it. */
  slotMissing = false
  /** Lets the process look after others, where expressions have taken it for long. */
  readonly breathe = eventLoopYielder()

  constructor(
    services: Services,
    tx: Tx,
    graph: Graph,
    loaded: LoadedRun,
    driven: DrivenRun | null = null,
    { used = [], isEstimated = false }: { used?: readonly PricedUsage[]; isEstimated?: boolean } = {},
  ) {
    const {
      now,
      project_paused,
      project_pause_reason,
      max_concurrent_runs,
      max_run_depth,
      stopping,
      held,
      seen_revision,
      open,
      children,
      ...run
    } = loaded
    this.services = services
    this.tx = tx
    this.graph = graph
    this.run = run
    this.driven = driven
    this.used = [...used]
    this.now = new Date(now)
    this.held = held
    this.stopping = stopping
    this.limits = { max_concurrent_runs, max_run_depth }
    this.children = new Map(children.map(each => [each.execution_id, each]))
    for (const row of open) this.open.set(row.id, row)
    this.#projectPaused = project_paused
    this.#projectReason = project_pause_reason
    this.#before = { status: run.status, required_actions: run.required_actions }
    this.#shape = shapeOf(run)
    this.#fresh = run.steps === 0
    this.#isEstimated = isEstimated
  }

  get nowText(): string {
    return this.now.toISOString()
  }

  get paused(): boolean {
    return this.run.pause_requested_at !== null || this.#projectPaused
  }

  get pauseReason(): string | null {
    return this.run.pause_requested_at === null ? this.#projectReason : this.run.pause_reason
  }

  node(id: string): Node {
    return this.graph.node(id) as Node
  }

  isPast = (time: string | null): boolean => time !== null && new Date(time).getTime() <= this.now.getTime()

  after(ms: number): string {
    return new Date(this.now.getTime() + ms).toISOString()
  }

  /** Notes that an attempt has changed. */
  touch(row: NodeExecutionRow): void {
    this.#changed.add(row)
  }

  /** Adds an attempt of a node. */
  add(
    node: Node,
    row: Pick<NodeExecutionRow, 'attempt' | 'round' | 'status' | 'input'> & Partial<NodeExecutionRow>,
  ): NodeExecutionRow {
    const made: NodeExecutionRow = {
      id: newId('orch_exec'),
      run_id: this.run.id,
      project_id: this.run.project_id,
      node_id: node.id,
      node_type: node.type,
      applied: false,
      parked: false,
      output: null,
      label: null,
      through: true,
      error: null,
      generation_id: null,
      approval_id: null,
      decision_id: null,
      progress: null,
      deliveries: 0,
      leased_until: null,
      holder: null,
      polls: 0,
      wake_at: null,
      deadline_at: null,
      callback_hash: null,
      compute_seconds: 0,
      started_at: this.nowText,
      completed_at: null,
      created_at: this.nowText,
      ...row,
    }
    this.open.set(made.id, made)
    this.touch(made)
    this.run.steps += 1
    return made
  }

  /**
   * Counts a value that an open attempt is about to hold: they are read and written together.
   * @throws ORCHESTRATION_NODE_FAILED (too_large)
   */
  hold(node: Node, value: unknown): void {
    const bytes = jsonBytes(value)
    if (bytes < SMALL_BYTES) return
    this.#openBytes ??= [...this.open.values()].reduce(
      (sum, { input, output }) => sum + jsonBytes(input) + jsonBytes(output),
      0,
    )
    this.#openBytes += bytes
    if (this.#openBytes > MAX_OPEN_BYTES)
      throw nodeFailed(node, 'too_large', 'The nodes that are under way hold more than 16 MiB')
  }

  /** An attempt has its outcome; it becomes part of the state when its turn comes. */
  complete(row: NodeExecutionRow, given: { artifact: unknown; label?: string | null; through?: boolean }): void {
    const outcome = this.driven ? this.driven.outcome(this.run, row, given, this.nowText) : given
    row.status = 'completed'
    row.output = outcome.artifact
    row.label = outcome.label ?? null
    row.through = outcome.through ?? true
    this.#settle(row)
  }

  /**
   * An attempt has failed: the node is tried again where its rule says so, completes with its failure where edges take
   * that up, or fails the run.
   */
  fail(row: NodeExecutionRow, error: unknown): void {
    const node = this.node(row.node_id)
    const raw = nodeFailure(error)
    const failure = this.driven ? this.driven.failure(node, raw) : raw
    row.status = 'failed'
    row.error = failure
    this.#settle(row)
    const delay = nodeRetryDelay(node, row.attempt, raw)
    if (delay !== null && this.run.steps >= this.services.config.ORCHESTRATION_RUN_MAX_STEPS) {
      row.error = this.tooManySteps().recorded()
      this.#stopFailed(row)
    } else if (delay !== null) {
      row.applied = true
      const wake_at = this.after(delay)
      const { input, attempt, round, progress, approval_id } = row
      this.add(node, {
        input,
        attempt: attempt + 1,
        round,
        status: 'waiting',
        parked: true,
        wake_at,
        progress,
        // What a person has approved stays approved.
        approval_id,
        started_at: null,
      })
    } else if (node.on_error === 'route') {
      row.status = 'completed'
      row.output = { error: failure }
      row.label = 'failed'
      row.through = false
    } else this.#stopFailed(row)
  }

  #settle(row: NodeExecutionRow): void {
    row.completed_at = this.nowText
    row.leased_until = null
    row.wake_at = null
    row.deadline_at = null
    row.callback_hash = null
    this.touch(row)
  }

  #failure: { node_id: string; error: RecordedFailure } | null = null

  #stopFailed(row: NodeExecutionRow): void {
    row.applied = true
    this.#failure ??= { node_id: row.node_id, error: row.error as RecordedFailure }
  }

  /** Room for the tree of the run among those of its project; taken, and kept until it has no running run. */
  async hasRunSlot(): Promise<boolean> {
    const { max_concurrent_runs } = this.limits
    if (max_concurrent_runs === null || this.#before.status === 'running') return true
    if (this.#room === null) {
      await lockRunSlots(this.tx, this.run.project_id)
      const { roots, own } = await runningTrees(this.tx, this.run.project_id, this.run.root_id)
      this.#room = own || roots < max_concurrent_runs
    }
    return this.#room
  }

  /** Whether something new may begin. */
  async mayProceed(): Promise<boolean> {
    if (this.paused) return false
    if (await this.hasRunSlot()) return true
    this.slotMissing = true
    return false
  }

  /** Ends the run with everything that is under way in it. */
  async stop(status: 'failed' | 'cancelled' | 'expired', error: RecordedFailure | null, node_id: string | null = null) {
    const { run } = this
    for (const row of this.open.values()) {
      if (row.status === 'completed' || row.status === 'failed') row.applied = true
      else {
        row.status = 'cancelled'
        row.applied = true
        this.#settle(row)
      }
      this.touch(row)
    }
    await cancelDescendants(this.tx, this.services, run, [...this.open.values()], null)
    run.error = error
    run.failed_node_id = node_id
    this.#end(status)
  }

  #end(status: 'succeeded' | 'failed' | 'cancelled' | 'expired'): void {
    const { run } = this
    run.status = status
    run.started_at ??= this.nowText
    run.completed_at = this.nowText
    run.active_nodes = []
    run.required_actions = []
    run.context = null
    run.wake_at = null
    run.due_at = null
    run.queued_at = null
  }

  /** Goes on as far as the rows allow. Returns whether more is to be done at once, in another transaction. */
  async work(steps: NodeSteps): Promise<boolean> {
    const { run } = this
    if (this.isPast(run.expires_at)) {
      await this.stop('expired', null)
      return false
    }
    await steps.look(this)
    if (await this.hasStopped()) return false
    for (;;) {
      const applied = this.#apply()
      if (await this.hasStopped()) return false
      const ready = computeFrontier(this.graph, run)
      if (ready.length === 0 && run.active_nodes.length === 0) {
        this.#succeed()
        return false
      }
      if (ready.length > 0 && (await this.mayProceed())) {
        if (this.#activations >= MAX_ACTIVATIONS || performance.now() - this.#started > MAX_MS) return true
        await this.#activate(ready, steps)
      } else if (!applied) return false
    }
  }

  /** Whether the run has ended, also by an attempt that has failed. */
  async hasStopped(): Promise<boolean> {
    if (this.#failure) {
      await this.stop('failed', this.#failure.error, this.#failure.node_id)
      this.#failure = null
    }
    return isRunTerminal(this.run)
  }

  /** Activates nodes together: they see the same state. */
  async #activate(ids: readonly string[], steps: NodeSteps): Promise<void> {
    const { run } = this
    run.started_at ??= this.nowText
    run.rounds += 1
    this.#activations += ids.length
    const limit = this.services.config.ORCHESTRATION_RUN_MAX_STEPS
    run.active_nodes = this.#inOrder([...run.active_nodes, ...ids])
    const state = this.roots()
    for (const id of ids) {
      const node = this.node(id)
      if (run.steps >= limit) return this.#stopFailed(this.#refused(node, this.tooManySteps()))
      await steps.begin(this, node, { round: run.rounds, state })
      await this.breathe()
      if (this.#failure) return
    }
  }

  /** What expressions of nodes read. */
  roots(): ExpressionState {
    return this.driven ? this.driven.roots(this.run) : longWorkState(this.run)
  }

  /** The failure of a run that has made as many attempts and polls as it may. */
  tooManySteps(): AppError {
    return new AppError('ORCHESTRATION_MAX_ITERATIONS_EXCEEDED', {
      meta: { limit: this.services.config.ORCHESTRATION_RUN_MAX_STEPS },
    })
  }

  #refused(node: Node, error: AppError): NodeExecutionRow {
    const row = this.add(node, {
      attempt: 1,
      round: this.run.rounds,
      status: 'failed',
      input: null,
      error: error.recorded(),
    })
    this.#settle(row)
    return row
  }

  #inOrder(ids: readonly string[]): string[] {
    const at = (id: string) => this.graph.order.get(id) as number
    return [...ids].sort((one, other) => at(one) - at(other))
  }

  /**
   * Makes outcomes part of the state whose turn has come: those of nodes that were activated together when none of them
   * executes any more, those of nodes that waited by themselves, in the order in which they came. Returns whether any did.
   */
  #apply(): boolean {
    const rounds = Map.groupBy(
      [...this.open.values()].filter(row => !row.parked && !row.applied),
      row => row.round,
    )
    const together = [...rounds.values()].filter(rows => rows.every(({ status }) => status === 'completed'))
    const alone = [...this.open.values()].filter(row => row.parked && row.status === 'completed').map(row => [row])
    const last = (rows: readonly NodeExecutionRow[]) =>
      Math.max(...rows.map(row => Date.parse(row.completed_at as string)))
    const due = [...together, ...alone].sort((one, other) => last(one) - last(other))
    const at = ({ node_id }: NodeExecutionRow) => this.graph.order.get(node_id) as number
    for (const rows of due) {
      const { outcomes, written } = this.run
      for (const row of rows.sort((one, other) => at(one) - at(other))) {
        this.#applyOutcome(row)
        if (!this.#failure) continue
        // Of nodes that were activated together either all are part of the state or none is.
        Object.assign(this.run, { outcomes, written })
        return true
      }
    }
    return due.length > 0
  }

  #applyOutcome(row: NodeExecutionRow): void {
    const { run } = this
    const node = this.node(row.node_id)
    const outcome: NodeOutcome = {
      artifact: node.type === 'condition' && row.error === null ? { label: row.label } : row.output,
      label: row.label,
      through: row.through,
    }
    run.outcomes = { ...run.outcomes, [node.id]: outcome }
    try {
      const writes = stateWritesOf(node, run, row.output)
      const isLarge = this.#isLarge(outcome, writes)
      for (const { path, value } of writes) run.written = withValue(run.written, path, value)
      if (isLarge && isTooLarge(run)) throw nodeFailed(node, 'too_large', 'The state of the run is larger than 4 MiB')
    } catch (error) {
      // The node is on record as completed until here.
      row.status = 'failed'
      row.error = nodeFailure(error)
      this.#stopFailed(row)
      return
    }
    row.applied = true
    this.touch(row)
    this.open.delete(row.id)
    run.active_nodes = run.active_nodes.filter(id => id !== node.id)
  }

  /** Whether the state may be too large with an outcome and what it writes: values that are replaced count as well. */
  #isLarge(outcome: NodeOutcome, writes: readonly { value: unknown }[]): boolean {
    this.#stateBytes ??= jsonBytes(longWorkState(this.run))
    this.#stateBytes += jsonBytes(outcome.artifact) + writes.reduce((sum, { value }) => sum + jsonBytes(value), 0)
    return this.#stateBytes > MAX_STATE_BYTES
  }

  #succeed(): void {
    const { run, graph } = this
    run.output = Object.fromEntries(
      graph.nodes
        .filter(
          ({ id, type }) => type !== 'condition' && Object.hasOwn(run.outcomes, id) && !graph.outgoing.get(id)?.length,
        )
        .map(({ id }) => [id, run.outcomes[id].artifact]),
    )
    for (const node of graph.nodes) {
      if (Object.hasOwn(run.outcomes, node.id)) continue
      const row = this.add(node, {
        attempt: 1,
        round: run.rounds,
        status: 'skipped',
        input: null,
        applied: true,
        started_at: null,
      })
      run.steps -= 1
      row.completed_at = this.nowText
    }
    this.#end('succeeded')
  }

  /** Writes the run as it stands now, with everything that follows from it. */
  async save(more: boolean): Promise<void> {
    const { run, tx } = this
    const open = [...this.open.values()].filter(({ applied }) => !applied)
    if (!isRunTerminal(run)) {
      run.required_actions = requiredActions(this, open)
      run.status = runStatus(this, open, more)
      run.queued_at = run.status === 'queued' ? (run.queued_at ?? this.nowText) : null
      const earliest = (times: readonly (string | null)[]): string | null => {
        const known = times.filter(time => time !== null).map(time => new Date(time).toISOString())
        return known.length > 0 ? known.sort()[0] : null
      }
      run.wake_at = earliest(open.map(({ wake_at }) => wake_at))
      // While it is paused or waits for room what falls due stays where it is, but not its end.
      const timers = this.paused || this.slotMissing ? [] : [run.wake_at]
      run.due_at = earliest([...timers, ...open.map(({ deadline_at }) => deadline_at), run.expires_at])
      if (run.due_at !== null) {
        const startAfter = new Date(run.due_at)
        if (isDueSoon({ startAfter })) tx.send(runQueue, this.message, { startAfter })
      }
    }
    // It was woken for nothing.
    if (!more && this.#changed.size + this.begunBelow.size === 0 && shapeOf(run) === this.#shape) return
    run.revision += 1
    run.updated_at = this.nowText
    const written = { ...run, outcomes: storableValue(run.outcomes) as RunRow['outcomes'] }
    const estimated = this.#isEstimated ? this.nowText : null
    tx.alongside(guard => runUpdate(written, guard, estimated))
    const changed = [...this.#changed]
    const computed = changed.filter(row => row.compute_seconds > 0 && row.completed_at === this.nowText)
    await this.#use(computed.map(row => computeOf(run, row)))
    await this.driven?.save({ run, before: this.#before.status, changed, open, now: this.nowText })
    if (changed.length > 0) tx.alongside(guard => executionsWrite(changed, guard, estimated))
    if (more) tx.send(runQueue, this.message)
    notifyRunChanged(tx, run)
    await this.#announce()
  }

  #announce(): Promise<void> {
    const { run, tx, used, limits } = this
    const { status } = this.#before
    return publishChange(tx, {
      run,
      before: this.#before,
      attempts: this.#changed,
      hasAttempts: !this.#fresh,
      used,
      driven: this.driven !== null,
      // Also where it had none or had it for this advance alone: it may have been woken in place of another one.
      heldRoom:
        limits.max_concurrent_runs !== null && (status === 'running' || status === 'queued' || this.#room === true),
    })
  }

  async #use(drafts: readonly UsageDraft[]): Promise<void> {
    const rated = await priceUsage(this.services, drafts, this.tx)
    recordUsageInTx(this.tx, rated)
    this.used.push(...rated)
  }

  get message() {
    return { run_id: this.run.id, project_id: this.run.project_id }
  }
}

/** What of a run can change while none of its attempts does. */
const shapeOf = ({ input, written, outcomes, ...shape }: RunRow): string => JSON.stringify(shape)

/** Whether an error is the failure of an attempt; others are those of the advance, which is made again. */
export const isFailure = (error: unknown): error is AppError | RecordedFailure =>
  !isTransient(error) && (error instanceof AppError || !(error instanceof Error))

/** What is recorded of a failure; that of a turn or of a run below is on record already. */
export const nodeFailure = (error: unknown): RecordedFailure =>
  isFailure(error) && !(error instanceof AppError) ? error : recordedFailure(error)
