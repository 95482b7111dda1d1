import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { type GenerationRow, generationKind } from '../model.ts'
import { FRAMES_PAGE, framesAfter, lastPauseFrame } from './frame-store.ts'
import { readFrame, STEP_SETTLED } from './frames.ts'

/** Progress of a running turn, for readers that follow more than its own stream. */
export type TurnProgress =
  /** The text of the step so far, in place of earlier text. */
  | { type: 'text'; text: string }
  | { type: 'delta'; text: string }
  | { type: 'tool'; tool_call_id: string; tool_name: string; label?: string; ok?: boolean }

/** Follows the text of a running turn through its stored frames. */
export class TurnFollower {
  /** Text of the step in progress. */
  text = ''
  readonly #services: Services
  readonly #turn: Pick<GenerationRow, 'id' | 'project_id' | 'content_mode'>
  #seq: number
  /** Whether the step has settled: the next text belongs to another step. */
  #settled = false

  private constructor(services: Services, turn: GenerationRow, seq: number) {
    this.#services = services
    this.#turn = { id: turn.id, project_id: turn.project_id, content_mode: turn.content_mode }
    this.#seq = seq
  }

  /** Returns a follower of the part of the turn since its last pause; null for a turn that is not streamed. */
  static async open(services: Services, generationId: string): Promise<TurnFollower | null> {
    const turn = await generationKind.find(services.pool, generationId)
    if (!turn?.streamed) return null
    return new TurnFollower(services, turn, await lastPauseFrame(services.pool, generationId))
  }

  get id(): string {
    return this.#turn.id
  }

  /** Reads the next frames and returns the progress in them, and whether there may be more. */
  async read(): Promise<{ progress: TurnProgress[]; more: boolean }> {
    const frames = await framesAfter(this.#services.pool, this.#turn.id, this.#seq)
    const progress = frames.flatMap(frame => {
      this.#seq = frame.seq
      return this.#apply(frame.event, parseExactJson(readFrame(this.#services, this.#turn, frame))) ?? []
    })
    return { progress, more: frames.length === FRAMES_PAGE }
  }

  #apply(event: string, data: Record<string, any>): TurnProgress | null {
    if (event === 'delta') {
      const text: string = data.choices?.[0]?.delta.content ?? ''
      const isNewStep = this.#settled
      this.#settled = false
      this.text = isNewStep ? text : this.text + text
      return isNewStep ? { type: 'text', text } : { type: 'delta', text }
    }
    if (event === 'step_restarted') {
      this.#settled = false
      this.text = ''
      return { type: 'text', text: '' }
    }
    if (event === STEP_SETTLED) this.#settled = true
    if (event !== 'tool_call' && event !== 'tool_result') return null
    const { tool_call_id, tool_name, label, ok } = data
    return { type: 'tool', tool_call_id, tool_name, label, ok }
  }
}

/** Returns the client tool calls for which a turn is paused, also if its content is not stored; none otherwise. */
export async function readPendingCalls(services: Services, generationId: string): Promise<unknown[]> {
  const turn = await generationKind.find(services.pool, generationId)
  if (turn?.status !== 'requires_action') return []
  if (turn.required_action) return callsOf(turn.required_action)
  const paused = await lastPauseFrame(services.pool, generationId)
  const [frame] = paused === 0 ? [] : await framesAfter(services.pool, generationId, paused - 1)
  return frame ? callsOf(parseExactJson(readFrame(services, turn, frame)).required_action) : []
}

const callsOf = (action: Record<string, any> | null | undefined): unknown[] => action?.tool_calls ?? []
