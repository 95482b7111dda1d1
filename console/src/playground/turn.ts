import type { AgentTurnEvent, GenerateResult } from '@muster/client'
import * as strings from '#strings.ts'

export type Step =
  | { kind: 'model'; number: number; text: string; finish?: string | null; tokens?: number; cost?: number | null }
  | {
      kind: 'tool'
      id: string
      name: string
      startedAt: number
      ms?: number
      ok?: boolean
      /** Whether the step of the call has ended. */
      isSettled?: boolean
    }
  | { kind: 'restarted'; number: number }

/** A turn and what has arrived of it; times in milliseconds since its start. */
export type Turn = {
  prompt: string
  steps: Step[]
  /** On the clock of the page. */
  startedAt: number
  generationId?: string
  firstMs?: number
  endedMs?: number
  result?: GenerateResult
  error?: unknown
  isStopped?: boolean
}

/** A call of a client tool, which the playground answers. */
export type ClientCall = { tool_call_id: string; tool_name: string; args: unknown }

/** Returns the calls of client tools that a turn waits for. */
export const clientCalls = ({ result }: Turn): ClientCall[] =>
  (result?.status === 'requires_action' && (result.required_action?.tool_calls as ClientCall[] | undefined)) || []

/** Number of steps of a turn that have ended. */
export const settledSteps = ({ steps }: Turn): number =>
  steps.filter(step => step.kind === 'model' && step.finish !== undefined).length

const isOpenText = (step: Step | undefined): boolean => step?.kind === 'model' && step.finish === undefined

const modelCalls = (steps: Step[]): number => steps.filter(({ kind }) => kind === 'model').length

/** Adds text to the model call that runs, which it starts if there is none. */
function withText(steps: Step[], text: string): Step[] {
  const last = steps[steps.length - 1]
  if (last?.kind === 'model' && isOpenText(last)) return [...steps.slice(0, -1), { ...last, text: last.text + text }]
  return [...steps, { kind: 'model', number: modelCalls(steps) + 1, text }]
}

/** Removes the text of the running model call: it comes again. */
const withoutOpenText = (steps: Step[]): Step[] => steps.filter(step => !isOpenText(step))

/** Completes the model call of a step; a call without text is added before the tools that it called. */
function settled(steps: Step[], facts: { finish: string | null; tokens?: number; cost?: number | null }): Step[] {
  const isOwnTool = (step: Step) => step.kind === 'tool' && !step.isSettled
  const end = (step: Step): Step =>
    isOpenText(step) ? ({ ...step, ...facts } as Step) : isOwnTool(step) ? ({ ...step, isSettled: true } as Step) : step
  if (steps.some(isOpenText)) return steps.map(end)
  const call: Step = { kind: 'model', number: modelCalls(steps) + 1, text: '', ...facts }
  const tools = steps.findIndex(isOwnTool)
  const at = tools < 0 ? steps.length : tools
  return [...steps.slice(0, at), call, ...steps.slice(at).map(end)]
}

/** An event with the time of its arrival. */
export type Arrival = { event: AgentTurnEvent; ms: number }

/** Returns a turn after an event of its stream. */
function advance(turn: Turn, { event, ms }: Arrival): Turn {
  const { steps } = turn
  switch (event.event) {
    case 'started':
      return { ...turn, generationId: event.data.generation_id ?? undefined }
    case 'tool_call': {
      const { tool_call_id: id, tool_name: name } = event.data
      return { ...turn, steps: [...steps, { kind: 'tool', id, name, startedAt: ms }] }
    }
    case 'tool_result': {
      const { tool_call_id, ok } = event.data
      const end = (step: Step): Step =>
        step.kind === 'tool' && step.id === tool_call_id ? { ...step, ok, ms: ms - step.startedAt } : step
      return { ...turn, steps: steps.map(end) }
    }
    case 'step_restarted':
      return { ...turn, steps: [...withoutOpenText(steps), { kind: 'restarted', number: event.data.step }] }
    case 'step': {
      const { finish_reason: finish, usage } = event.data
      const tokens = usage ? usage.input_tokens + usage.output_tokens : undefined
      return { ...turn, steps: settled(steps, { finish, tokens, cost: usage?.cost_usd }) }
    }
    case 'completed':
    case 'requires_action':
      return { ...turn, result: event.data, generationId: event.data.id, endedMs: ms }
    case 'error':
      return { ...turn, error: new Error(event.data.message ?? strings.sessions.turnFailed), endedMs: ms }
    default:
      return turn
  }
}

/** Returns a turn after events of its stream; neighbouring pieces of text are joined first. */
export function advanceAll(turn: Turn, arrivals: Arrival[]): Turn {
  let text = ''
  let next = turn
  const write = () => {
    if (text) next = { ...next, steps: withText(next.steps, text) }
    text = ''
  }
  for (const arrival of arrivals) {
    const { event, ms } = arrival
    if (event.event === 'delta') {
      text += event.data.choices[0]?.delta.content ?? ''
      if (next.firstMs === undefined) next = { ...next, firstMs: ms }
    } else {
      write()
      next = advance(next, arrival)
    }
  }
  write()
  return next
}
