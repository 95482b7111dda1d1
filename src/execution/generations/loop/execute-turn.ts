import { systemClock } from '#core/base/clock.ts'
import { raise } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { NewerFormatError } from '#core/base/format-versions.ts'
import { HOLDER } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import { traced } from '#core/base/telemetry.ts'
import { databaseErrorKind, isTransient } from '#core/db/database-errors.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { SilentHostError, withSilentHost } from '#core/net/hanging-calls.ts'
import { mediaRules } from '#execution/agents/media.ts'
import { callRoute, routingRecorder } from '#execution/model-routes/call.ts'
import { callModel, ModelCallError } from '#execution/providers/call.ts'
import type { ModelAnswer, ModelMessage, ModelRequest, PromptMessage } from '#execution/providers/model-messages.ts'
import { sentRequest, withReference } from '../journal/sent-request.ts'
import { CUT, settledStep } from '../journal/step.ts'
import type { OpenStep, TurnData } from '../model.ts'
import { attachFiles, readFiles } from '../request/message-files.ts'
import { calledModels } from '../request/message-media.ts'
import { promptMessages } from '../request/turn-result.ts'
import { liveTurns, TurnAborted, TurnClaimLost } from '../streams/live-turns.ts'
import type { ToolCallResults } from '../tools/tool-calls.ts'
import { type Toolbox, type TurnTool, unavailableNote } from '../tools/toolbox.ts'
import { callTools, openTools } from '../tools/turn-tools.ts'
import { clientInstructionMessages, modelSettings, vendorToolsOf } from './client-request.ts'
import { boundHistory, type RequestSize, summaryMessages } from './context-bound.ts'
import { describeMedia } from './describe-media.ts'
import { ModelWait, modelWaitOf, mustWaitForModel, waitForModel } from './model-wait.ts'
import { pauseTurn } from './pause-turn.ts'
import { prepareTurn } from './prepare-turn.ts'
import { knowledgeMessages, recallKnowledge } from './recall.ts'
import { completeTurn, failTurn, mayStoreDerived, recordTurnFailure, settleAtDepthLimit } from './settle-turn.ts'
import { referenceMessages } from './shared-state.ts'
import { outputSchemaOf, stepSettings, stoppingTools } from './step-settings.ts'
import { TurnAttempt } from './turn-attempt.ts'
import { ownedTurn, type TurnContext } from './turn-owner.ts'
import { noteTurn, turnSpan } from './turn-span.ts'
import { type LoadedTurn, loadTurn } from './turn-store.ts'

type StepSettings = ReturnType<typeof stepSettings>

const LOST_ATTEMPTS_MAX = 3
const DEFAULT_MAX_STEPS = 20

/** Delay of a turn whose model does not answer. It grows with the wait, so that many waiting turns cost little. */
const SILENT_HOST_DELAY_MS = { least: 2000, most: 30_000 }

/**
 * How an attempt ended: `settled` or paused, `claim_lost` to another attempt, `requeued` because this process stops or the
 * model does not answer, `waiting` for a model until a wake-up that was sent.
 */
type TurnExit = 'settled' | 'claim_lost' | 'requeued' | 'waiting'

/**
 * Executes a turn, which createTurn has placed, until it settles or pauses. The path of a turn: executeTurn (load) →
 * prepareTurn → TurnAttempt.claim → runSteps: requestStep, callTools, TurnAttempt.journalStep → completeTurn, failTurn
 * or pauseTurn → commitAttempt, which also emits events and notifies waiting callers. Returns `deferred` if the project
 * is paused and the turn has not started, and `settled` if another process executes the turn as its holder.
 * @param preloaded the turn, if it was loaded with its message or its prompt
 * @throws NewerFormatError before the claim, if only a later release can continue the turn
 */
export async function executeTurn(
  services: Services,
  generationId: string,
  context: TurnContext,
  preloaded: LoadedTurn | null = null,
): Promise<TurnExit | 'deferred'> {
  const loaded = preloaded ?? (await loadTurn(services.pool, generationId))
  if (!loaded) return 'settled'
  const { status } = loaded.generation
  if (status !== 'pending' && status !== 'in_progress') return 'settled'
  if (status === 'pending' && loaded.paused) return 'deferred'
  if (context.isHolder) {
    // Workers may have claimed the turn between its insert and its load.
    if (loaded.holder !== HOLDER) return 'claim_lost'
  } else if (loaded.isExecutedByHolder) return 'settled'
  if (mustWaitForModel(loaded.generation)) return 'waiting'
  const source = context.source ?? ownedTurn(loaded.generation)
  const turn = new TurnAttempt(services, loaded, { ...context, source })
  const exit = await withTriggerChain(triggerChainOf(loaded.generation.authority), () =>
    traced(turnSpan, turn, async span => {
      const exit = await runAttempt(turn)
      if (span) noteTurn(span, turn, exit)
      return exit
    }),
  )
  // Another worker may have started and requeued the turn after it was loaded.
  const isStale = preloaded !== null && exit === 'claim_lost' && !turn.isClaimed && !context.signal.aborted
  return isStale ? executeTurn(services, generationId, context) : exit
}

async function runAttempt(turn: TurnAttempt): Promise<TurnExit> {
  const { services, context } = turn
  const controller = new AbortController()
  const onSignal = () => controller.abort(new TurnClaimLost())
  context.signal.addEventListener('abort', onSignal, { once: true })
  let unregister: (() => void) | null = null
  try {
    const { data, refusal } = await prepareTurn(services, turn.loaded, context.source)
    turn.prepared(data)
    // Refused before the claim, so that a crash here has no effect.
    if (refusal) return await failTurn(turn, refusal)
    await turn.claim()
    unregister = liveTurns(services).run(turn.generation.id, turn.generation.attempt, controller)
    if (context.signal.aborted) throw new TurnClaimLost()
    return await runClaimed(turn, data as TurnData, controller)
  } catch (error) {
    const reason = controller.signal.aborted ? controller.signal.reason : error
    if (reason instanceof NewerFormatError && !turn.isClaimed) throw reason
    if (reason instanceof TurnClaimLost) return turn.stopWithoutSettling()
    if (reason instanceof ModelWait) return await waitOrStop(turn, reason)
    if (reason instanceof SilentHostError) {
      context.retryIn(Math.min(SILENT_HOST_DELAY_MS.most, Math.max(SILENT_HOST_DELAY_MS.least, idleMs(turn) / 4)))
      await turn.requeueUncounted()
      return 'requeued'
    }
    if (isTransient(reason)) {
      // The next attempt continues after the settled steps. A statement that always times out counts as a lost worker.
      if (databaseErrorKind(reason) === 'unavailable') await turn.requeueUncounted()
      throw reason
    }
    return failOrStop(turn, reason)
  } finally {
    context.signal.removeEventListener('abort', onSignal)
    unregister?.()
    await turn.end()
  }
}

async function runClaimed(turn: TurnAttempt, data: TurnData, controller: AbortController): Promise<TurnExit> {
  const { generation, services } = turn
  if (generation.lost_attempts >= LOST_ATTEMPTS_MAX)
    return failTurn(turn, {
      code: 'GENERATION_FAILED',
      message: 'The turn was abandoned after three lost workers without progress',
      meta: { reason: 'executor_lost' },
    })
  if (generation.abort) throw new TurnAborted(generation.abort)
  await injectFault(services, 'after_claim')
  if (data.depth === 0) return settleAtDepthLimit(turn)
  const clearLimit = limitTime(turn, controller)
  try {
    const recalled = await recallKnowledge(turn, data, controller.signal)
    turn.setTools(await openTools(turn, recalled, controller.signal))
    return await runSteps(turn, recalled, controller)
  } finally {
    clearLimit()
  }
}

/** Runs steps until an answer, a limit, a pause or an abort. */
async function runSteps(turn: TurnAttempt, data: TurnData, controller: AbortController): Promise<TurnExit> {
  const { agent, services, context } = turn
  const { signal } = controller
  const maxSteps = Math.min(agent.max_steps ?? DEFAULT_MAX_STEPS, services.config.AGENT_MAX_STEPS_CEILING)
  const stopping = stoppingTools(agent, data)
  let sent: SentHistory = {
    history: newestMessages(data.messages ?? [], agent.max_context_messages),
    request: null,
    mustFit: false,
  }
  for (;;) {
    signal.throwIfAborted()
    if (context.stopping.aborted && turn.steps.length > turn.loaded.steps.length) return turn.requeue()
    const n = turn.steps.length + 1
    const settings = stepSettings(agent, data, n)
    const tools = activeTools(turn.tools, settings)
    if (!turn.open) {
      const startedAt = systemClock.now().toISOString()
      await injectFault(services, 'before_model', () => turn.generation.id)
      turn.startStep()
      const { answer, ...next } = await requestStep(turn, data, sent, n, offeredTools(tools, settings), controller)
      sent = next
      const step = turn.addAnswer(answer, n, startedAt)
      await injectFault(services, 'after_model')
      signal.throwIfAborted()
      // Calls of an answer that the vendor withheld are no decision of the model's.
      if (answer.tool_calls.length === 0 || answer.finish_reason === 'content-filter')
        return completeTurn(turn, settledStep(step, new Map()), signal, { request: sent.request })
      turn.openStep(step)
    }
    const open = turn.open as NonNullable<TurnAttempt['open']>
    const { pending, called, events } = isCut(open.step)
      ? refuseCutCalls(open)
      : await callTools(turn, data, open, tools, signal)
    if (pending.length > 0) return pauseTurn(turn, pending, events)
    const settled = settledStep(open.step, open.outcomes)
    const stop = [...called].some(name => stopping.has(name)) ? 'tool-calls' : n >= maxSteps ? 'max_steps' : null
    if (stop) return completeTurn(turn, settled, signal, { stop, events, request: sent.request })
    await turn.journalStep(settled, events)
  }
}

/** Returns the time since the first claim of a turn or its last settled step. */
const idleMs = ({ generation }: TurnAttempt): number =>
  systemClock.now().getTime() - new Date(generation.last_activity_at ?? systemClock.now()).getTime()

/** Requeues the turn until the next attempt at its model call, unless its abort was requested meanwhile. */
async function waitOrStop(turn: TurnAttempt, wait: ModelWait): Promise<TurnExit> {
  try {
    return await waitForModel(turn, wait)
  } catch (error) {
    return failOrStop(turn, error)
  }
}

/**
 * Calls the model of a step. After a failure that may pass, the turn is requeued if it may wait. It is also requeued instead of
 * waiting for a host that does not answer, until it has waited for as long as an attempt may take: then it waits, and fails
 * by that limit.
 */
async function callInTurn(
  turn: TurnAttempt,
  controller: AbortController,
  call: () => Promise<ModelAnswer>,
): Promise<ModelAnswer> {
  const isPatient = idleMs(turn) < turn.services.config.GENERATION_MAX_SECONDS * 1000
  try {
    return await (isPatient ? withSilentHost(() => controller.abort(new SilentHostError()), call) : call())
  } catch (error) {
    const wait = error instanceof ModelCallError ? modelWaitOf(turn, error.failure) : null
    throw wait ?? error
  }
}

const isCut = ({ finish_reason }: OpenStep): boolean => finish_reason === 'length'

/** Gives the calls of an answer that was cut off failed results: their arguments may be incomplete. */
function refuseCutCalls({ step, outcomes }: NonNullable<TurnAttempt['open']>): ToolCallResults {
  for (const position of step.tool_calls.keys()) outcomes.set(position, CUT)
  return { pending: [], called: new Set(), events: [] }
}

/** Aborts the attempt at GENERATION_MAX_SECONDS or at the turn's deadline. Returns a function that clears the timer. */
function limitTime({ generation, services }: TurnAttempt, controller: AbortController): () => void {
  const maxMs = services.config.GENERATION_MAX_SECONDS * 1000
  const deadlineMs = generation.deadline_at
    ? new Date(generation.deadline_at).getTime() - systemClock.now().getTime()
    : Number.POSITIVE_INFINITY
  const timeout = () =>
    new TurnAborted({
      code: 'GENERATION_FAILED',
      message: 'The turn exceeded its time limit',
      meta: { reason: 'deadline' },
      // A deadline of the caller has the stop reason of a cancel.
      stop_reason: deadlineMs < maxMs ? 'cancelled' : 'error',
    })
  const timer = setTimeout(() => controller.abort(timeout()), Math.max(0, Math.min(maxMs, deadlineMs, 2 ** 31 - 1)))
  return () => clearTimeout(timer)
}

/** Returns the tools that a step may call: the active bound tools, and tools defined in the agent itself. */
const activeTools = ({ tools }: Toolbox, { active }: StepSettings): ReadonlyMap<string, TurnTool> =>
  active === null
    ? tools
    : new Map([...tools].filter(([, { callable }]) => callable.id === null || active.has(callable.id)))

/** Returns the tools of a model request, without a forced choice of an unavailable tool. */
function offeredTools(
  tools: ReadonlyMap<string, TurnTool>,
  { tool_choice }: StepSettings,
): Pick<ModelRequest, 'tools' | 'tool_choice'> {
  if (tools.size === 0) return { tools: [], tool_choice: null }
  return {
    tools: [...tools.values()].map(({ name, description, schema, strict }) => ({
      name,
      description,
      parameters: schema,
      ...(strict && { strict }),
    })),
    tool_choice: availableChoice(tools, tool_choice),
  }
}

/** Returns a choice among available tools. If no allowed tool is available, no tool may be called. */
function availableChoice(
  tools: ReadonlyMap<string, TurnTool>,
  choice: StepSettings['tool_choice'],
): StepSettings['tool_choice'] {
  if (typeof choice !== 'object' || choice === null) return choice
  if (choice.type === 'tool') return tools.has(choice.tool_name) ? choice : 'auto'
  const tool_names = choice.tool_names.filter(name => tools.has(name))
  return tool_names.length > 0 ? { ...choice, tool_names } : 'none'
}

/** What the model requests of an attempt read of the history. */
type SentHistory = {
  /** Messages that fit into the context; later steps omit further ones but restore none. */
  history: ModelMessage[]
  /** Size of the last request of an agent with a context policy. */
  request: RequestSize | null
  /** Whether messages without a summary are omitted, because the model takes no context as long. */
  mustFit: boolean
}

type StepAnswer = SentHistory & { answer: ModelAnswer }

/** Requests a step. If the model takes no context as long, messages without a summary are omitted after all. */
async function requestStep(
  turn: TurnAttempt,
  data: TurnData,
  sent: SentHistory,
  ...step: StepRequest
): Promise<StepAnswer> {
  try {
    return await requestOnce(turn, data, sent, ...step)
  } catch (error) {
    const isTooLong = error instanceof ModelCallError && error.failure.class === 'context_length'
    if (!isTooLong || !keepsHistory(turn, sent)) throw error
    return requestOnce(turn, data, { ...sent, mustFit: true }, ...step)
  }
}

type StepRequest = [step: number, offered: ReturnType<typeof offeredTools>, controller: AbortController]

/**
 * Requests a step from the model of the turn's agent. With a route, the attempts at its targets are added to `routing`
 * of the generation during the call; they are written with the step or with the failure of the turn.
 * @throws MODEL_ROUTE_NOT_FOUND or AI_PROVIDER_NOT_FOUND if deleted since, errors of the model call
 */
async function requestOnce(
  turn: TurnAttempt,
  data: TurnData,
  sent: SentHistory,
  ...[step, offered, controller]: StepRequest
): Promise<StepAnswer> {
  const { agent, generation, services, route } = turn
  const { provider } = turn.loaded
  const { signal } = controller
  const parts = [agent.instructions ?? '', ...data.system_extra, unavailableNote(turn.tools.unavailable) ?? '']
    .map(part => part.trim())
    .filter(part => part !== '')
  const output_schema = outputSchemaOf(agent, data)
  const system = parts.length > 0 ? parts.join('\n\n') : null
  const summary = summaryMessages(data)
  const fromClient = [...clientInstructionMessages(data), ...referenceMessages(data)]
  const reference = [...knowledgeMessages(data), ...fromClient]
  const steps = turn.steps.flatMap(promptMessages)
  const others = { system, tools: offered.tools, fixed: [...summary, ...reference, ...steps] }
  let fitting = fitHistory(turn, data, sent, step, others)
  let { files } = turn
  if (!files) {
    files = await readFiles(services, generation.project_id, fitting.history, signal, {
      rules: mediaRules(agent.media),
      models: calledModels(turn.loaded, data.model ?? agent.model),
      describe: (target, content) => describeMedia(turn, target, content, signal),
    })
    turn.holdFiles(files)
    // Texts of files may exceed the estimate.
    if (files.parts.size > 0) fitting = fitHistory(turn, data, fitting, step, others)
  }
  const request: ModelRequest = {
    system,
    messages: [
      ...summary,
      ...withReference(attachFiles(fitting.history, files), reference.map(changing)),
      ...attachFiles(steps, files),
    ],
    ...modelSettings(agent, data.overrides),
    ...offered,
    output_schema,
    prompt_caching: agent.prompt_caching?.enabled ?? null,
    prompt_cache_ttl: agent.prompt_caching?.ttl,
    provider_options: agent.provider_options,
    vendor_tools: vendorToolsOf(agent, data.overrides),
    ...((generation.content_mode === 'none' || data.overrides.client?.store === false) && { store: false }),
    signal,
    onUnused: answer => turn.addUnusedAnswer(answer, step),
    // A structured answer is validated as a whole before front ends receive it; clients of the OpenAI API validate it too.
    ...(generation.streamed && (!output_schema || generation.shape === 'agent')
      ? {
          onDelta: (text: string) => turn.appendText(text),
          ...(turn.showsReasoning && { onReasoning: (text: string) => turn.frames.text(text, 'reasoning') }),
        }
      : {}),
  }
  if (generation.content_mode === 'full' && generation.publisher_project_id === null) {
    turn.requests.record(
      step,
      sentRequest(request, {
        opening: summary,
        reference: fromClient,
        messages: data.messages ?? [],
        history: fitting.history,
      }),
    )
  }
  if (provider) {
    const model = data.model ?? agent.model ?? provider.default_model
    const retries = generation.model_attempts > 0 ? { retries: 0 } : {}
    const answer = await callInTurn(turn, controller, () => callModel(services, provider, model, request, retries))
    return { ...fitting, answer }
  }
  // The provider or route of an earlier agent version may have been deleted.
  if (!route)
    raise(agent.ai_provider_id === null ? 'MODEL_ROUTE_NOT_FOUND' : 'AI_PROVIDER_NOT_FOUND', {
      meta: { id: agent.ai_provider_id ?? agent.model_route_id ?? undefined },
    })
  const routing = routingRecorder(route, generation.routing, generation.publisher_project_id)
  turn.recordRouting(routing)
  const answer = await callInTurn(turn, controller, () => callRoute(services, route, request, { step, routing }))
  return { ...fitting, answer }
}

/** Marks a message that changes with each turn. */
const changing = (message: PromptMessage): PromptMessage =>
  message.role === 'user' ? { ...message, changes: true } : message

/** Returns the part of a history that fits into the context of a step. */
function fitHistory(
  turn: TurnAttempt,
  data: TurnData,
  sent: SentHistory,
  step: number,
  request: Omit<Parameters<typeof boundHistory>[2], 'keeps' | 'attached'>,
): SentHistory {
  const { context_policy } = turn.agent
  if (!context_policy) return sent
  const { history, ...size } = boundHistory(
    context_policy,
    sent.history,
    { ...request, attached: turn.files?.parts, keeps: keepsHistory(turn, sent) },
    data.context?.bytes_per_token ?? null,
  )
  const dropped = history.length < sent.history.length || sent.request?.dropped === true
  return { ...sent, history, request: { step, ...size, dropped } }
}

/** Whether messages stay in the context until their summary exists, as long as the model takes them. */
const keepsHistory = (turn: TurnAttempt, { mustFit }: SentHistory): boolean =>
  turn.agent.context_policy?.strategy === 'summarize' &&
  turn.generation.conversation_id !== null &&
  mayStoreDerived(turn) &&
  !mustFit

/** Fails the turn, or stops without settling if the claim was lost. */
async function failOrStop(turn: TurnAttempt, reason: unknown): Promise<TurnExit> {
  try {
    if (reason instanceof TurnAborted) return await failTurn(turn, reason.failure, reason.failure.stop_reason)
    return await failTurn(turn, recordTurnFailure(reason))
  } catch (error) {
    if (error instanceof TurnClaimLost) return turn.stopWithoutSettling()
    throw error
  }
}

/**
 * Returns the newest messages up to the agent's limit, from a message of the user on: what precedes it answers a message
 * that is cut off. The last message of the user stays.
 */
function newestMessages(messages: ModelMessage[], limit: number | null): ModelMessage[] {
  if (limit === null || messages.length <= limit) return messages
  const isUser = ({ role }: ModelMessage) => role === 'user'
  const start = messages.length - limit
  const from = messages.findIndex((message, index) => index >= start && isUser(message))
  if (from >= 0) return messages.slice(from)
  const last = messages.findLastIndex(isUser)
  return last >= 0 ? messages.slice(last) : messages.slice(start)
}
