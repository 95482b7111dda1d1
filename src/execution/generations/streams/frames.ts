import type { Services } from '#core/base/services.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import type { GenerationRow } from '../model.ts'
import { appendFrames, type Frame } from './frame-store.ts'
import { notifyFrames, TurnClaimLost } from './live-turns.ts'

/** Frame at the end of a step in conversations, whose streams do not show steps. */
export const STEP_SETTLED = 'step_settled'

/** Frame at the start of a call that runs another agent. */
export const NESTED_AGENT = 'nested_agent'

/** Interval at which text is written; the first part is written immediately. */
const BATCH_MS = 30

const sealedFor = (generation: Pick<GenerationRow, 'id' | 'project_id'>, seq: number) => ({
  kind: 'stream_frame',
  id: `${generation.id}:${seq}`,
  project_id: generation.project_id,
})

/** Returns a frame; in content mode `none` its data is sealed, so that the table contains no readable content. */
export function makeFrame(
  services: Services,
  generation: GenerationRow,
  seq: number,
  event: string,
  data: object,
): Frame {
  const text = JSON.stringify(data)
  return {
    seq,
    event,
    data: generation.content_mode === 'none' ? services.secrets.seal(text, sealedFor(generation, seq)) : text,
  }
}

/** Returns the data of a frame as JSON text. */
export function readFrame(
  services: Services,
  generation: Pick<GenerationRow, 'id' | 'project_id' | 'content_mode'>,
  frame: { seq: number; data: string },
): string {
  if (generation.content_mode === 'full') return frame.data
  const opened = services.secrets.open(frame.data, sealedFor(generation, frame.seq))
  return opened.ok ? opened.value : '{}'
}

/** Returns the data of the `started` event. */
export const startedOf = ({ id: generation_id, trace_id, agent_version, shape }: GenerationRow) =>
  shape === 'agent' ? { generation_id, trace_id, agent_version } : { generation_id, trace_id }

export const deltaOf = (content: string) => ({ choices: [{ index: 0, delta: { content } }] })

/** Text of an answer, or of the reasoning before it. */
type Text = { event: 'delta' | 'reasoning'; content: string }

/** Writes the frames of an attempt in order: text in batches, at most one statement at a time. */
export class FrameWriter {
  private pending: Text[] = []
  private flushing: Promise<void> | null = null
  private timer: NodeJS.Timeout | null = null
  private failure: unknown = null
  private lastFlush = 0
  private readonly services: Services
  private readonly generation: GenerationRow
  private readonly signal: AbortSignal
  #seq: number

  /** @param signal aborted when the attempt must stop */
  constructor(services: Services, generation: GenerationRow, lastSeq: number, signal: AbortSignal) {
    this.services = services
    this.generation = generation
    this.#seq = lastSeq
    this.signal = signal
  }

  /** Number of the last frame. */
  get seq(): number {
    return this.#seq
  }

  /** Returns to the number of an earlier frame, because the write of later ones is repeated. */
  rewind(seq: number): void {
    this.#seq = seq
  }

  next(event: string, data: object): Frame {
    this.#seq += 1
    return makeFrame(this.services, this.generation, this.#seq, event, data)
  }

  /** Queues streamed text. */
  text(content: string, event: Text['event'] = 'delta'): void {
    const last = this.pending.at(-1)
    if (last?.event === event) last.content += content
    else this.pending.push({ event, content })
    if (this.flushing || this.timer) return
    const wait = Math.max(0, this.lastFlush + BATCH_MS - performance.now())
    if (wait === 0) this.flush()
    else
      this.timer = setTimeout(() => {
        this.timer = null
        this.flush()
      }, wait)
  }

  private flush(): void {
    if (this.pending.length === 0 || this.flushing) return
    const frames = this.takePending()
    this.lastFlush = performance.now()
    const { services, generation, signal } = this
    const append = () => appendFrames(services.pool, generation.id, generation.attempt, frames)
    this.flushing = retryWhileUnavailable(append, { signal })
      .then(
        owned => {
          if (owned) notifyFrames(services, generation.id)
          else this.failure = new TurnClaimLost()
        },
        error => {
          this.failure = error
        },
      )
      .then(() => {
        this.flushing = null
        if (this.pending.length > 0 && !this.timer && !this.failure) {
          this.timer = setTimeout(
            () => {
              this.timer = null
              this.flush()
            },
            Math.max(0, this.lastFlush + BATCH_MS - performance.now()),
          )
        }
      })
  }

  private takePending(): Frame[] {
    const texts = this.pending
    this.pending = []
    return texts.map(({ event, content }) => this.next(event, event === 'delta' ? deltaOf(content) : { text: content }))
  }

  /** Waits for the write in progress and returns the rest as a frame for the next statement. @throws TurnClaimLost */
  async drain(): Promise<Frame[]> {
    if (this.timer) clearTimeout(this.timer)
    this.timer = null
    const rest = this.takePending()
    while (this.flushing) await this.flushing
    if (this.failure) throw this.failure
    return rest
  }

  /** Discards unwritten text of a lost or failed step. */
  async discard(): Promise<void> {
    if (this.timer) clearTimeout(this.timer)
    this.timer = null
    this.pending = []
    while (this.flushing) await this.flushing
  }
}
