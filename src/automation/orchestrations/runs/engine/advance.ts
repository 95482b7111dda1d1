import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import type { Node } from '#automation/orchestrations/definition/model.ts'
import { type ActivityEntry, recordActivityInTx } from '#control/activity/record.ts'
import { recordUsageInTx, type UsageDraft } from '#control/usage/meter.ts'
import { type PricedUsage, priceUsage } from '#control/usage/price-usage.ts'
import type { RunTotals } from '#control/usage/report-store.ts'
import { AppError, type RecordedFailure, recordedFailure } from '#core/base/errors.ts'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { traceContext } from '#core/base/telemetry.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { isDueSoon } from '#core/queues/queue.ts'
import type { Tx } from '#core/writes/writer.ts'
import { cancelDescendants } from '../commands/cancel-descendants.ts'
import { isRunTerminal, longWorkState, type NodeOutcome, type RunRow } from '../model.ts'
import { requiredActions } from '../nodes/required-actions.ts'
import { runQueue } from '../queue.ts'
import { computeOf } from '../reads/usage.ts'
import { type ChildCounts, countRunningTrees, hasChanged, type LoadedRun, lockRunSlots, runUpdate } from '../store.ts'
import type { DrivenOutcome, DrivenRun } from './driver.ts'
import { computeFrontier } from './frontier.ts'
import { executionsInsert, executionsUpdate, type NodeExecutionRow } from './node-execution-store.ts'
import { publishChange } from './publish-change.ts'
import { nodeRetryDelay } from './retry-delay.ts'
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

/** Limits of one advance before it continues in another transaction: activations, milliseconds. */
const MAX_ACTIVATIONS = 200
const MAX_MS = 1000
/** Values below this size are not counted toward MAX_OPEN_BYTES. */
const SMALL_BYTES = 32 * 1024

/** Functions with which an advance handles the nodes of a run. */
export type NodeHandlers = {
  /** Applies external events to the open node executions. */
  collectOutcomes(advance: Advance): Promise<void>
  /** Starts a node. */
  startNode(advance: Advance, node: Node, at: { round: number; state: ExpressionState }): Promise<void>
}

/**
 * One advance of a run, from its locked rows to its updated rows, in one transaction and without calls to other
 * services.
 */
export class Advance {
  readonly services: Services
  readonly tx: Tx
  readonly graph: Graph
  readonly run: RunRow
  /** Records of the module that drives the run. */
  readonly driven: DrivenRun | null
  /** Transaction time by the clock of the database; an estimate in a one-statement advance. */
  readonly now: Date
  readonly limits: { max_run_depth: number | null; max_concurrent_runs: number | null }
  /** Node executions of the project with a valid lease. */
  readonly projectLeases: number
  /** Whether the run is about to be cancelled and must start nothing more. */
  readonly stopping: boolean
  readonly children: ReadonlyMap<string, ChildCounts>
  /** Unapplied node executions, in their current state. */
  readonly open = new Map<string, NodeExecutionRow>()
  /** Usage of the run that this advance writes. */
  readonly #used: UsageDraft[] = []
  /** Entries of the activity of the project that this advance writes. */
  readonly #activity: ActivityEntry[] = []
  /** Node executions for workers, in definition order. */
  readonly forWorkers: NodeExecutionRow[] = []
  /** Node executions that started nested runs in this advance; `children` does not include those runs. */
  readonly startedNested = new Set<string>()
  readonly #added = new Set<NodeExecutionRow>()
  readonly #changed = new Set<NodeExecutionRow>()
  readonly #projectPaused: boolean
  readonly #projectPauseReason: string | null
  /** The run before this advance. */
  readonly #before: RunRow
  /** Whether `now` is an estimate that the statement replaces by its own time. */
  readonly #isEstimated: boolean
  /** Node executions of the run other than the open ones; null if they must be read. */
  readonly #past: readonly NodeExecutionRow[] | null
  /** Written usage of the run; null if it must be read. */
  readonly #written: readonly RunTotals[] | null
  readonly #started = performance.now()
  #activations = 0
  #stateBytes: number | null = null
  #openBytes: number | null = null
  #hasSlot: boolean | null = null
  /** Whether something is ready to start or continue and lacks a run slot. */
  slotMissing = false
  /** Yields to the event loop during long series of expressions. */
  readonly yieldToEventLoop = eventLoopYielder()

  constructor(
    services: Services,
    tx: Tx,
    graph: Graph,
    loaded: LoadedRun,
    driven: DrivenRun | null = null,
    {
      isEstimated = false,
      past = null,
      written = null,
    }: {
      isEstimated?: boolean
      past?: readonly NodeExecutionRow[] | null
      written?: readonly RunTotals[] | null
    } = {},
  ) {
    const {
      now,
      project_paused,
      project_pause_reason,
      max_concurrent_runs,
      max_run_depth,
      stopping,
      project_leases,
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
    this.now = new Date(now)
    this.projectLeases = project_leases
    this.stopping = stopping
    this.limits = { max_concurrent_runs, max_run_depth }
    this.children = new Map(children.map(counts => [counts.execution_id, counts]))
    for (const row of open) this.open.set(row.id, row)
    this.#projectPaused = project_paused
    this.#projectPauseReason = project_pause_reason
    this.#before = { ...run }
    this.#past = run.steps === 0 ? [] : past
    this.#written = written
    this.#isEstimated = isEstimated
  }

  get project_id(): string {
    return this.run.project_id
  }

  get nowText(): string {
    return this.now.toISOString()
  }

  get paused(): boolean {
    return this.run.pause_requested_at !== null || this.#projectPaused
  }

  get pauseReason(): string | null {
    return this.run.pause_requested_at === null ? this.#projectPauseReason : this.run.pause_reason
  }

  node(id: string): Node {
    return this.graph.node(id) as Node
  }

  readonly isPast = (time: string | null): boolean => time !== null && new Date(time).getTime() <= this.now.getTime()

  after(ms: number): string {
    return new Date(this.now.getTime() + ms).toISOString()
  }

  /** Marks a node execution as changed. */
  markChanged(row: NodeExecutionRow): void {
    this.#changed.add(row)
  }

  /** Node executions that have ended in this advance. */
  get ended(): NodeExecutionRow[] {
    return [...this.#changed].filter(({ applied }) => applied)
  }

  /** Adds usage, which is written with the run. */
  addUsage(...drafts: readonly UsageDraft[]): void {
    this.#used.push(...drafts)
  }

  /** Adds an entry of the activity of the project, which is written with the run. */
  addActivity(entry: ActivityEntry): void {
    this.#activity.push(entry)
  }

  /** Adds a node execution. */
  add(
    node: Node,
    row: Pick<NodeExecutionRow, 'attempt' | 'round' | 'status' | 'input'> & Partial<NodeExecutionRow>,
  ): NodeExecutionRow {
    const added: NodeExecutionRow = {
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
      trace_context: traceContext(),
      ...row,
    }
    this.open.set(added.id, added)
    this.#added.add(added)
    this.markChanged(added)
    this.run.steps += 1
    return added
  }

  /**
   * Counts a value that an open node execution will hold: open executions are read and written together.
   * @throws ORCHESTRATION_NODE_FAILED (too_large)
   */
  countOpenValue(node: Node, value: unknown): void {
    const bytes = jsonBytes(value)
    if (bytes < SMALL_BYTES) return
    this.#openBytes ??= [...this.open.values()].reduce(
      (sum, { input, output }) => sum + jsonBytes(input) + jsonBytes(output),
      0,
    )
    this.#openBytes += bytes
    if (this.#openBytes > MAX_OPEN_BYTES)
      throw nodeFailed(node, 'too_large', 'Inputs and outputs of the active nodes exceed 16 MiB')
  }

  /** Completes a node execution; its outcome is applied to the state later, in order. */
  async complete(row: NodeExecutionRow, result: DrivenOutcome): Promise<void> {
    const outcome = this.driven ? await this.driven.outcome(this.run, row, result, this.nowText) : result
    row.status = 'completed'
    row.output = outcome.artifact
    row.label = outcome.label ?? null
    row.through = outcome.through ?? true
    this.#settle(row)
  }

  /**
   * Fails a node execution: schedules the next attempt if the retry policy allows one; otherwise completes the node
   * with its failure if `on_error` is `route`, or fails the run.
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
        // An approval given by a person is valid for all attempts.
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
    this.markChanged(row)
  }

  #failure: { node_id: string; error: RecordedFailure } | null = null

  #stopFailed(row: NodeExecutionRow): void {
    row.applied = true
    this.#failure ??= { node_id: row.node_id, error: row.error as RecordedFailure }
  }

  /**
   * Whether the tree of the run has, or can take, a run slot of the project. The tree keeps the slot until it has no
   * running run.
   */
  async hasRunSlot(): Promise<boolean> {
    const { max_concurrent_runs } = this.limits
    if (max_concurrent_runs === null || this.#before.status === 'running') return true
    if (this.#hasSlot === null) {
      await lockRunSlots(this.tx, this.run.project_id)
      const { roots, own } = await countRunningTrees(this.tx, this.run.project_id, this.run.root_id)
      this.#hasSlot = own || roots < max_concurrent_runs
    }
    return this.#hasSlot
  }

  /** Whether something new may start: not paused, and a run slot is available. */
  async mayProceed(): Promise<boolean> {
    if (this.paused) return false
    if (await this.hasRunSlot()) return true
    this.slotMissing = true
    return false
  }

  /** Ends the run and cancels its active work. */
  async stop(status: 'failed' | 'cancelled' | 'expired', error: RecordedFailure | null, node_id: string | null = null) {
    const { run } = this
    for (const row of this.open.values()) {
      if (row.status === 'completed' || row.status === 'failed') row.applied = true
      else {
        row.status = 'cancelled'
        row.applied = true
        this.#settle(row)
      }
      this.markChanged(row)
    }
    await cancelDescendants(this.tx, this.services, run, [...this.open.values()], null)
    run.error = error
    run.failed_node_id = node_id
    this.#setTerminal(status)
  }

  #setTerminal(status: 'succeeded' | 'failed' | 'cancelled' | 'expired'): void {
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

  /**
   * Advances as far as the rows allow. Returns whether the advance must continue immediately in another transaction.
   */
  async proceed(handlers: NodeHandlers): Promise<boolean> {
    const { run } = this
    if (this.isPast(run.expires_at)) {
      await this.stop('expired', null)
      return false
    }
    await handlers.collectOutcomes(this)
    if (await this.hasStopped()) return false
    for (;;) {
      const applied = await this.#apply()
      if (await this.hasStopped()) return false
      const ready = computeFrontier(this.graph, run)
      if (ready.length === 0 && run.active_nodes.length === 0) {
        this.#succeed()
        return false
      }
      if (ready.length > 0 && (await this.mayProceed())) {
        if (this.#activations >= MAX_ACTIVATIONS || performance.now() - this.#started > MAX_MS) return true
        await this.#activate(ready, handlers)
      } else if (!applied) return false
    }
  }

  /** Fails the run if one of its node executions failed it. Returns whether the run has ended. */
  async hasStopped(): Promise<boolean> {
    if (this.#failure) {
      await this.stop('failed', this.#failure.error, this.#failure.node_id)
      this.#failure = null
    }
    return isRunTerminal(this.run)
  }

  /** Activates nodes together: all of them read the same state. */
  async #activate(ids: readonly string[], handlers: NodeHandlers): Promise<void> {
    const { run } = this
    run.started_at ??= this.nowText
    run.rounds += 1
    this.#activations += ids.length
    const limit = this.services.config.ORCHESTRATION_RUN_MAX_STEPS
    run.active_nodes = this.#inDefinitionOrder([...run.active_nodes, ...ids])
    const state = this.roots()
    for (const id of ids) {
      const node = this.node(id)
      if (run.steps >= limit) return this.#stopFailed(this.#addRefused(node, this.tooManySteps()))
      await handlers.startNode(this, node, { round: run.rounds, state })
      await this.yieldToEventLoop()
      if (this.#failure) return
    }
  }

  /** Returns the values that expressions of nodes read. */
  roots(): ExpressionState {
    return this.driven ? this.driven.roots(this.run) : longWorkState(this.run)
  }

  /** Returns the failure of a run that reached its limit of node executions and polls. */
  tooManySteps(): AppError {
    return new AppError('ORCHESTRATION_MAX_ITERATIONS_EXCEEDED', {
      meta: { limit: this.services.config.ORCHESTRATION_RUN_MAX_STEPS },
    })
  }

  #addRefused(node: Node, error: AppError): NodeExecutionRow {
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

  #inDefinitionOrder(ids: readonly string[]): string[] {
    const position = (id: string) => this.graph.order.get(id) as number
    return [...ids].sort((one, other) => position(one) - position(other))
  }

  /**
   * Applies due outcomes to the state: for nodes activated together once none of them executes, for nodes
   * that waited separately, in order of completion. Returns whether any was applied.
   */
  async #apply(): Promise<boolean> {
    const rounds = Map.groupBy(
      [...this.open.values()].filter(row => !row.parked && !row.applied),
      row => row.round,
    )
    const together = [...rounds.values()].filter(rows => rows.every(({ status }) => status === 'completed'))
    const separate = [...this.open.values()].filter(row => row.parked && row.status === 'completed').map(row => [row])
    const completedAt = (rows: readonly NodeExecutionRow[]) =>
      Math.max(...rows.map(row => Date.parse(row.completed_at as string)))
    const due = [...together, ...separate].sort((one, other) => completedAt(one) - completedAt(other))
    const position = ({ node_id }: NodeExecutionRow) => this.graph.order.get(node_id) as number
    for (const rows of due) {
      const { outcomes, written } = this.run
      for (const row of rows.sort((one, other) => position(one) - position(other))) {
        await this.#applyOutcome(row)
        if (!this.#failure) continue
        // Nodes activated together are applied all or none.
        Object.assign(this.run, { outcomes, written })
        return true
      }
    }
    return due.length > 0
  }

  async #applyOutcome(row: NodeExecutionRow): Promise<void> {
    const { run } = this
    const node = this.node(row.node_id)
    const outcome = storableValue({
      artifact: node.type === 'condition' && row.error === null ? { label: row.label } : row.output,
      label: row.label,
      through: row.through,
    }) as NodeOutcome
    run.outcomes = { ...run.outcomes, [node.id]: outcome }
    try {
      const writes = await stateWritesOf(this, node, run, row.output)
      const isLarge = this.#isLarge(outcome, writes)
      for (const { path, value } of writes) run.written = withValue(run.written, path, value)
      if (isLarge && isTooLarge(run)) throw nodeFailed(node, 'too_large', 'State of the run exceeds 4 MiB')
    } catch (error) {
      if (isBusy(error)) throw error
      // The node was recorded as completed until here.
      row.status = 'failed'
      row.error = nodeFailure(error)
      this.#stopFailed(row)
      return
    }
    row.applied = true
    this.markChanged(row)
    this.open.delete(row.id)
    run.active_nodes = run.active_nodes.filter(id => id !== node.id)
  }

  /**
   * Whether the state may exceed its limit with an outcome and its writes. An upper bound: replaced values are counted,
   * too.
   */
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
    this.#setTerminal('succeeded')
  }

  /** Writes the run with its events, messages and usage. */
  async save(continues: boolean): Promise<void> {
    const { run, tx } = this
    const open = [...this.open.values()].filter(({ applied }) => !applied)
    if (!isRunTerminal(run)) {
      run.required_actions = requiredActions(this, open)
      run.status = runStatus(this, open, continues)
      run.queued_at = run.status === 'queued' ? (run.queued_at ?? this.nowText) : null
      const earliest = (times: readonly (string | null)[]): string | null => {
        const set = times.filter(time => time !== null).map(time => new Date(time).toISOString())
        return set.length > 0 ? set.sort()[0] : null
      }
      run.wake_at = earliest(open.map(({ wake_at }) => wake_at))
      // While the run is paused or lacks a slot, due timers are ignored, but not its expiry.
      const timers = this.paused || this.slotMissing ? [] : [run.wake_at]
      run.due_at = earliest([...timers, ...open.map(({ deadline_at }) => deadline_at), run.expires_at])
      if (run.due_at !== null) {
        const startAfter = new Date(run.due_at)
        if (isDueSoon({ startAfter })) tx.send(runQueue, this.message, { startAfter })
      }
    }
    const changed = [...this.#changed]
    const computed = changed.filter(row => row.compute_seconds > 0 && row.completed_at === this.nowText)
    const used = await priceUsage(this.services, [...this.#used, ...computed.map(row => computeOf(run, row))], tx)
    recordUsageInTx(this.services, tx, used)
    recordActivityInTx(tx, ...this.#activity)
    // Nothing changed.
    if (!continues && changed.length + this.startedNested.size === 0 && !hasChanged(this.#before, run)) return
    run.revision += 1
    run.updated_at = this.nowText
    const estimated = this.#isEstimated ? this.nowText : null
    tx.alongside(guard => runUpdate(this.#before, run, guard, estimated))
    await this.driven?.save({ run, before: this.#before.status, changed, open, now: this.nowText })
    const existing = changed.filter(row => !this.#added.has(row))
    if (existing.length > 0) tx.alongside(guard => executionsUpdate(existing, guard, estimated))
    if (this.#added.size > 0) tx.alongside(guard => executionsInsert([...this.#added], guard, estimated))
    if (continues) tx.send(runQueue, this.message)
    await this.#publish(used)
  }

  #publish(used: readonly PricedUsage[]): Promise<void> {
    const { run, tx, services, limits } = this
    const { status } = this.#before
    return publishChange(tx, services, {
      run,
      before: this.#before,
      attempts: this.#changed,
      past: this.#past,
      used,
      written: this.#written,
      driven: this.driven !== null,
      // Also if it had no slot or took one in this advance only: its wake-up may have replaced the wake-up of another
      // run.
      mayHaveHeldSlot:
        limits.max_concurrent_runs !== null && (status === 'running' || status === 'queued' || this.#hasSlot === true),
    })
  }

  get message() {
    return { run_id: this.run.id, project_id: this.run.project_id }
  }
}

/** Whether an error fails the node execution. Other errors fail the advance, which is retried. */
export const isFailure = (error: unknown): error is AppError | RecordedFailure =>
  !isTransient(error) && !isBusy(error) && (error instanceof AppError || !(error instanceof Error))

/** Whether threads of the process are busy: the advance is retried. */
const isBusy = (error: unknown): boolean => error instanceof AppError && error.code === 'SERVICE_NOT_READY'

/** Returns the failure to record. Failures of turns and nested runs are recorded already. */
export const nodeFailure = (error: unknown): RecordedFailure =>
  isFailure(error) && !(error instanceof AppError) ? error : recordedFailure(error)
