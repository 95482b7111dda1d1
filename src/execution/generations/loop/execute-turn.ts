import { databaseErrorKind, isTransient } from '../../../core/db/database-errors.ts'
import { withTriggerChain } from '../../../core/db/trigger-chain.ts'
import { triggerChainOf } from '../../../core/iam/caller.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import type { Services } from '../../../core/process/services.ts'
import type { ModelAnswer } from '../../providers/model-messages.ts'
import { openStepOf, settledStep } from '../journal/open-step.ts'
import type { TurnData } from '../model.ts'
import { attachFiles, readFiles } from '../request/message-files.ts'
import { stepMessages } from '../request/turn-result.ts'
import { liveTurns, TurnAborted, TurnClaimLost } from '../streams/live-turns.ts'
import { unavailableNote } from '../tools/toolbox.ts'
import { callTools, openTools } from '../tools/turn-tools.ts'
import { historyOf } from './history.ts'
import { pauseTurn } from './pause-turn.ts'
import { prepareTurn } from './prepare-turn.ts'
import { knowledgeMessages, recallKnowledge } from './recall.ts'
import { activeTools, offeredTools, requestStep } from './request-step.ts'
import { completeTurn, failTurn, recordTurnFailure, settleAtDepthLimit } from './settle-turn.ts'
import { stepSettings, stoppingTools } from './step-settings.ts'
import { TurnAttempt } from './turn-attempt.ts'
import { ownedTurn, type TurnRun } from './turn-owner.ts'
import { loadTurn } from './turn-store.ts'

const LOST_ATTEMPTS_MAX = 3
const DEFAULT_MAX_STEPS = 20

/**
 * How an attempt is left: `settled` when the turn is at its end or paused, `lost` when another process owns it,
 * `handed_back` when this process is stopping and the turn goes on elsewhere.
 */
type TurnExit = 'settled' | 'lost' | 'handed_back'

/**
 * Claims a generation (attempt + 1) and runs it to its end or its next pause. Returns `waiting` when its project is paused
 * and it has not started.
 */
export async function executeTurn(
  services: Services,
  generationId: string,
  run: TurnRun,
): Promise<TurnExit | 'waiting'> {
  const loaded = await loadTurn(services.pool, generationId)
  if (!loaded) return 'settled'
  const { status } = loaded.generation
  if (status !== 'pending' && status !== 'in_progress') return 'settled'
  if (status === 'pending' && loaded.paused) return 'waiting'
  const source = run.source ?? ownedTurn(loaded.generation)
  return withTriggerChain(triggerChainOf(loaded.generation.authority), () =>
    carryOut(new TurnAttempt(services, loaded, { ...run, source })),
  )
}

async function carryOut(turn: TurnAttempt): Promise<TurnExit> {
  const { services, run } = turn
  const controller = new AbortController()
  const leave = () => controller.abort(new TurnClaimLost())
  run.signal.addEventListener('abort', leave, { once: true })
  let ended: (() => void) | null = null
  try {
    const { work, refusal } = await prepareTurn(services, turn.loaded, run.source)
    turn.work = work
    // Refused before it started: no claim, so that a crash here leaves nothing behind.
    if (refusal) return await failTurn(turn, refusal)
    await turn.claim()
    ended = liveTurns(services).run(turn.generation.id, turn.generation.attempt, controller)
    if (run.signal.aborted) throw new TurnClaimLost()
    return await runClaimed(turn, work as TurnData, controller)
  } catch (error) {
    const reason = controller.signal.aborted ? controller.signal.reason : error
    if (reason instanceof TurnClaimLost) return turn.leave()
    if (isTransient(reason)) {
      // The next attempt goes on behind what is settled. A statement that is always too slow counts as a lost worker.
      if (databaseErrorKind(reason) === 'unavailable') await turn.release()
      throw reason
    }
    return failOrLeave(turn, reason)
  } finally {
    run.signal.removeEventListener('abort', leave)
    ended?.()
    turn.files?.release()
    turn.leaveCalls()
    await turn.frames.discard()
  }
}

async function runClaimed(turn: TurnAttempt, work: TurnData, controller: AbortController): Promise<TurnExit> {
  const { generation, services } = turn
  if (generation.lost_attempts >= LOST_ATTEMPTS_MAX)
    return failTurn(turn, {
      code: 'GENERATION_FAILED',
      message: 'The worker of the turn was lost three times without progress',
      meta: { reason: 'executor_lost' },
    })
  if (generation.abort) throw new TurnAborted(generation.abort)
  await injectFault(services, 'after_claim')
  if (work.depth === 0) return settleAtDepthLimit(turn)
  const unlimit = limitTime(turn, controller)
  try {
    await recallKnowledge(turn, work, controller.signal)
    turn.tools = await openTools(turn, work, controller.signal)
    return await runSteps(turn, work, controller.signal)
  } finally {
    unlimit()
  }
}

/** Step after step until an answer, a limit, a pause or an abort. */
async function runSteps(turn: TurnAttempt, work: TurnData, signal: AbortSignal): Promise<TurnExit> {
  const { agent, services, run } = turn
  const maxSteps = Math.min(agent.max_steps ?? DEFAULT_MAX_STEPS, services.config.AGENT_MAX_STEPS_CEILING)
  const stopping = stoppingTools(agent, work)
  for (;;) {
    signal.throwIfAborted()
    if (run.stopping.aborted && turn.steps.length > turn.loaded.steps.length) return turn.handBack()
    const n = turn.steps.length + 1
    const settings = stepSettings(agent, work, n)
    const tools = activeTools(turn.tools, settings)
    if (!turn.open) {
      const startedAt = new Date().toISOString()
      await injectFault(services, 'before_model')
      turn.partial = ''
      const answer = await ask(turn, work, n, offeredTools(tools, settings), signal)
      const step = openStepOf(answer, n, startedAt, turn.steps)
      turn.answered = step
      await injectFault(services, 'after_model')
      signal.throwIfAborted()
      if (answer.tool_calls.length === 0) return completeTurn(turn, settledStep(step, new Map()), signal)
      turn.open = { step, started: new Set(), outcomes: new Map() }
    }
    const { pending, called, told } = await callTools(turn, work, turn.open, tools, signal)
    if (pending.length > 0) return pauseTurn(turn, pending, told)
    const settled = settledStep(turn.open.step, turn.open.outcomes)
    const stop = [...called].some(name => stopping.has(name)) ? 'tool-calls' : n >= maxSteps ? 'max_steps' : null
    if (stop) return completeTurn(turn, settled, signal, { stop, told })
    await turn.journal(settled, told)
  }
}

/** Ends the attempt when its segment or the turn's own deadline is over. Call the result when it is left. */
function limitTime({ generation, services }: TurnAttempt, controller: AbortController): () => void {
  const segment = services.config.GENERATION_MAX_SECONDS * 1000
  const own = generation.deadline_at
    ? new Date(generation.deadline_at).getTime() - Date.now()
    : Number.POSITIVE_INFINITY
  const over = () =>
    new TurnAborted({
      code: 'GENERATION_FAILED',
      message: 'The turn took too long',
      meta: { reason: 'deadline' },
      // A caller's own deadline ends the turn as its cancel would.
      stop_reason: own < segment ? 'cancelled' : 'error',
    })
  const timer = setTimeout(() => controller.abort(over()), Math.max(0, Math.min(segment, own, 2 ** 31 - 1)))
  return () => clearTimeout(timer)
}

async function ask(
  turn: TurnAttempt,
  work: TurnData,
  step: number,
  offered: ReturnType<typeof offeredTools>,
  signal: AbortSignal,
): Promise<ModelAnswer> {
  const { agent, generation, services, loaded, route } = turn
  const history = historyOf(work.messages ?? [], agent.max_context_messages)
  turn.files ??= await readFiles(services, generation.project_id, history, signal)
  const asked = requestStep(services, {
    generation,
    agent,
    work,
    provider: loaded.provider,
    route,
    step,
    messages: [
      ...knowledgeMessages(work),
      ...attachFiles([...history, ...turn.steps.flatMap(stepMessages)], turn.files),
    ],
    note: unavailableNote(turn.tools.unavailable),
    offered,
    signal,
    ...(generation.streamed ? { onDelta: (text: string) => turn.receive(text) } : {}),
  })
  turn.generation = asked.generation
  return asked.answer
}

/** Records a failure; when even that finds the turn owned by another process, leaves. */
async function failOrLeave(turn: TurnAttempt, reason: unknown): Promise<TurnExit> {
  try {
    if (reason instanceof TurnAborted) return await failTurn(turn, reason.failure, reason.failure.stop_reason)
    return await failTurn(turn, recordTurnFailure(reason))
  } catch (error) {
    if (error instanceof TurnClaimLost) return turn.leave()
    throw error
  }
}
