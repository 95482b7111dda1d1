import type { WorkerType } from '#automation/orchestrations/definition/definition.ts'
import { parseDuration } from '#automation/orchestrations/definition/duration.ts'
import type { UsageDraft } from '#control/usage/meter.ts'
import { timeIn } from '#core/base/clock.ts'
import { AppError } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { instanceId } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import { currentCapture, type Span, traced } from '#core/base/telemetry.ts'
import { databaseErrorKind, isTransient } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { logAttempt, noteAttempt } from '#core/work/attempt.ts'
import { ClaimLostError } from '#core/work/handler.ts'
import type { ToolRow } from '#execution/tools/model.ts'
import { runKnowledgeNode, runMemoryNode } from '../nodes/knowledge.ts'
import { callNodeTool, pollNode } from '../nodes/tool.ts'
import { nodeExecutionQueue } from '../queue.ts'
import { idempotencyKeyOf } from '../reads/present-run.ts'
import { isFailure, nodeFailure } from './advance.ts'
import { advanceIfUnchanged } from './advance-run.ts'
import type { AdvanceResult, CachedRun, EndNodeInTx, NodeEnd, NodeWork, NodeWorkOutcome } from './node-execution.ts'
import { type ClaimedNode, claimedNode, releaseNode, renewLease, requeueNode } from './node-execution-store.ts'
import { loadPinnedGraph } from './pinned-graph.ts'
import { nodeFailed } from './run-state.ts'
import { settleNode, settleNodes } from './settle-nodes.ts'
import { nodeSpan } from './spans.ts'

type NodeExecutor = (work: NodeWork, endNodeInTx: EndNodeInTx) => Promise<NodeWorkOutcome | AdvanceResult | null>

const EXECUTORS: Record<WorkerType, NodeExecutor> = {
  tool: callNodeTool,
  poll: pollNode,
  knowledge: runKnowledgeNode,
  memory_write: runMemoryNode,
}

/** Delay of a node execution that a database error interrupted. */
const UNAVAILABLE_DELAY_MS = 1000

/** Time that a worker continues with one run before it serves others. */
const CHAIN_MS = 1000

/**
 * Executes a claimed node execution, then the executions that follow from it one at a time, while the run has one ready
 * and CHAIN_MS is not over. Other ready executions have messages.
 * @param signal aborted when the worker shuts down
 */
export async function executeNodes(
  services: Services,
  first: { execution: ClaimedNode; cached: CachedRun | null },
  signal: AbortSignal,
  stopping: AbortSignal,
): Promise<void> {
  const until = performance.now() + CHAIN_MS
  let execution: ClaimedNode | null = first.execution
  let cached = first.cached
  let tool: ToolRow | null = null
  while (execution) {
    const mayContinue = () => !stopping.aborted && performance.now() < until
    const current: Work = { execution, cached, tool }
    const after: AdvanceResult | null = await withTriggerChain(triggerChainOf(execution.authority), () =>
      traced(nodeSpan, current.execution, span => executeNode(services, current, signal, mayContinue, span)),
    )
    execution = after?.claimed[0] ? claimedNode(after.claimed[0], after.run) : null
    cached = after?.cached ?? null
    tool = after?.tool ?? null
  }
}

type Work = { execution: ClaimedNode; cached: CachedRun | null; tool: ToolRow | null }

async function executeNode(
  services: Services,
  { execution, cached, tool }: Work,
  signal: AbortSignal,
  mayContinue: () => boolean,
  span: Span | null,
): Promise<AdvanceResult | null> {
  const lease = new Lease(services, execution, signal)
  const started = performance.now()
  const used: UsageDraft[] = []
  const ids = {
    run_id: execution.run_id,
    node_id: execution.node_id,
    attempt: execution.attempt,
    delivery: execution.deliveries,
  }
  const log = (outcome: string, fields: object = {}) => {
    noteAttempt(span, { ...fields, outcome })
    logAttempt(services.log, nodeExecutionQueue.name, started, { ...ids, ...fields, outcome })
  }
  const following: ClaimedNode[] = []
  const endOf = (outcome: NodeEnd['outcome']): NodeEnd => ({
    execution,
    outcome,
    used,
    started,
    mayContinue,
    capture: currentCapture(),
    following,
  })
  const endNodeInTx: EndNodeInTx = async (tx, outcome) => {
    if (lease.lost) throw new ClaimLostError()
    return (await settleNodes(tx, services, [endOf(outcome)]))[0]
  }
  const endExecution = async (outcome: NodeEnd['outcome']) => {
    const end = endOf(outcome)
    const after = await retryWhileUnavailable(
      async () =>
        (cached &&
          // The failure of a run needs a transaction.
          (await advanceIfUnchanged(
            services,
            { cached, mayEnd: !('error' in outcome) },
            execution,
            async (tx, from) => (await settleNodes(tx, services, [end], from))[0],
          ))) ??
        settleNode(services, end),
      { signal: lease.signal },
    )
    if (!after) for (const claimed of following) await requeueNodeExecution(services, claimed)
    return after
  }
  try {
    await injectFault(services, 'node_taken')
    const outcome = await runExecutor(
      services,
      { execution, tool },
      lease.signal,
      draft => void used.push(draft),
      endNodeInTx,
    )
    if (lease.lost) throw new ClaimLostError()
    await injectFault(services, 'node_called')
    if (outcome && 'run' in outcome) {
      log('completed')
      return outcome
    }
    const after = outcome && (await endExecution(outcome))
    await injectFault(services, 'node_finished')
    log(after ? 'completed' : 'claim_lost')
    return after
  } catch (error) {
    if (signal.aborted || (isTransient(error) && !lease.lost)) {
      const delayMs = signal.aborted ? 0 : UNAVAILABLE_DELAY_MS
      const counted = !signal.aborted && databaseErrorKind(error) === 'timeout'
      for (const claimed of [execution, ...following])
        await requeueNodeExecution(services, claimed, { delayMs, counted, isStopping: signal.aborted })
      log('requeued', { err: signal.aborted ? undefined : error })
      return null
    }
    if (lease.lost || error instanceof ClaimLostError) {
      log('claim_lost')
      return null
    }
    if (!isFailure(error)) services.log.error({ err: error, ...ids }, 'node execution failed')
    const after = await endExecution({ error })
    log('failed', { code: nodeFailure(error).code })
    return after
  } finally {
    lease.stop()
  }
}

async function runExecutor(
  services: Services,
  { execution, tool }: Pick<Work, 'execution' | 'tool'>,
  signal: AbortSignal,
  addUsage: (draft: UsageDraft) => void,
  endNodeInTx: EndNodeInTx,
): Promise<NodeWorkOutcome | AdvanceResult | null> {
  const pinned = await loadPinnedGraph(services, services.pool, execution)
  const node = pinned?.graph.node(execution.node_id)
  if (!node) throw new AppError('ORCHESTRATION_NOT_FOUND', { meta: { id: execution.orchestration_id } })
  const ms =
    (node.timeout == null ? null : parseDuration(node.timeout)) ?? services.config.ORCHESTRATION_NODE_TIMEOUT_MS
  const deadline = AbortSignal.timeout(Math.min(ms, 2 ** 31 - 1))
  const combined = AbortSignal.any([signal, deadline])
  try {
    const running = EXECUTORS[node.type as WorkerType](
      { services, node, execution, idempotencyKey: idempotencyKeyOf(execution), tool, signal: combined, addUsage },
      endNodeInTx,
    )
    return await Promise.race([running, rejectOnAbort(combined, running)])
  } catch (error) {
    if (deadline.aborted && !signal.aborted) throw nodeFailed(node, 'timeout', 'Node execution exceeded its timeout')
    throw error
  }
}

/** Rejects when the signal aborts; later errors of the work are ignored. */
const rejectOnAbort = (signal: AbortSignal, running: Promise<unknown>): Promise<never> =>
  new Promise((_resolve, reject) => {
    const aborted = () => {
      running.catch(() => {})
      reject(signal.reason)
    }
    if (signal.aborted) aborted()
    else {
      signal.addEventListener('abort', aborted, { once: true })
      const done = () => signal.removeEventListener('abort', aborted)
      running.then(done, done)
    }
  })

/** Requeues a node execution if this worker still holds its claim. `isStopping`: because the worker stops. */
export const requeueNodeExecution = (
  services: Services,
  execution: ClaimedNode,
  { delayMs = 0, counted = false, isStopping = false } = {},
): Promise<void> =>
  retryWhileUnavailable(() =>
    services.write(async tx => {
      const isHeld = isStopping
        ? await releaseNode(tx, execution, instanceId(services.config, 'worker'))
        : await requeueNode(tx, execution, counted)
      if (!isHeld) return
      const { id: execution_id, run_id, project_id } = execution
      const startAfter = delayMs > 0 ? { startAfter: timeIn(delayMs) } : {}
      tx.send(nodeExecutionQueue, { execution_id, run_id, project_id }, startAfter)
    }),
  )

/** Renews the lease of a node execution; its signal is aborted when the claim is lost or the run ends. */
class Lease {
  readonly signal: AbortSignal
  readonly #lost = new AbortController()
  readonly #timer: NodeJS.Timeout

  constructor(services: Services, execution: ClaimedNode, outer: AbortSignal) {
    const leaseMs = services.config.ORCHESTRATION_NODE_LEASE_SECONDS * 1000
    this.signal = AbortSignal.any([outer, this.#lost.signal])
    this.#timer = setInterval(async () => {
      try {
        if (!(await renewLease(services.pool, execution, leaseMs)))
          this.#lost.abort(new Error('claim of the node execution lost'))
      } catch (error) {
        services.log.warn({ err: error, execution_id: execution.id }, 'lease renewal failed')
      }
    }, leaseMs / 3)
  }

  get lost(): boolean {
    return this.#lost.signal.aborted
  }

  stop(): void {
    clearInterval(this.#timer)
  }
}
