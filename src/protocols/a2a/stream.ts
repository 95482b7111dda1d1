import { setTimeout as sleep } from 'node:timers/promises'
import { dataMessage, PING } from '#core/api/event-stream.ts'
import { AppError, isErrorCode } from '#core/base/errors.ts'
import { STEP_SETTLED } from '#execution/generations/streams/frames.ts'
import { openTranslated, type TranslatedStream } from '../event-format.ts'
import type { TaskRow } from './store.ts'
import type { A2aRequest } from './target.ts'
import { answerUpdates, idsOf, presentTask, REPLY, readTask, statusUpdate } from './task.ts'
import { isResting, type StreamResponse } from './wire.ts'

/** Interval of reads while a decided approval is followed up. */
const POLL_MS = 250

/** Text of the last step as the stream has sent it; a later step replaces it. */
class SentText {
  text: string | null = null
  private isEnded = false

  /** Makes the next text replace the sent one. */
  endStep(): void {
    this.isEnded = true
  }

  /** Returns the update that adds a piece of text. */
  add(task: TaskRow, delta: string): StreamResponse {
    if (this.isEnded) this.text = null
    this.isEnded = false
    const append = this.text !== null
    this.text = (this.text ?? '') + delta
    const artifact = { artifactId: REPLY, name: REPLY, parts: [{ text: delta, mediaType: 'text/plain' }] }
    return { artifactUpdate: { ...idsOf(task), artifact, append, lastChunk: false } }
  }
}

/** Converts an update of a task to the message of a binding. */
export type Present = (update: StreamResponse) => object

/**
 * Yields a task and then its changes until it rests, as messages of the stream. The task does not depend on the stream.
 * @param first stream of the turn that the task waits for
 * @throws the refusal of a caller that has lost its permission
 */
export async function* taskUpdates(
  request: A2aRequest,
  task: TaskRow,
  present: Present,
  first?: TranslatedStream,
): AsyncGenerator<string | Buffer> {
  yield dataMessage(present({ task: presentTask(task) }))
  let current = task
  let followed = first
  const { closed } = request.exchange.request
  while (!isResting(current.state) && !closed.aborted) {
    const sent = new SentText()
    followed ??= await openStream(request, current)
    if (followed) {
      const { stream, format } = followed
      format.translate = async (event, data) => {
        const updates: StreamResponse[] = []
        if (event === 'delta') {
          const { content } = data.choices[0].delta
          if (content !== '') updates.push(sent.add(current, content))
        } else if (event === STEP_SETTLED || event === 'step_restarted') sent.endStep()
        else if (event === 'run.updated' || event === 'started') {
          const next = await readTask(request, current.id)
          format.isEnded = isResting(next.state)
          if (format.isEnded) return []
          if (next.state !== current.state) updates.push(statusUpdate(next))
          current = next
        } else if (event === 'error') raiseLostPermission(data)
        return updates.map(present)
      }
      yield* stream
    } else {
      await sleep(POLL_MS)
      yield PING
    }
    followed = undefined
    const next = await readTask(request, current.id)
    const updates = isResting(next.state) ? answerUpdates(next, sent.text) : []
    if (next.state !== current.state) updates.push(statusUpdate(next))
    for (const update of updates) yield dataMessage(present(update))
    current = next
  }
}

/** Opens the stream of what a task waits for; undefined between a decision and the turn that follows it. */
async function openStream(request: A2aRequest, task: TaskRow): Promise<TranslatedStream | undefined> {
  const { run_id, session_id, turn_id, turn_status } = task
  if (run_id !== null)
    return openTranslated(request, 'a2a', 'streamOrchestrationRun', { params: { orchestration_run_id: run_id } })
  if (turn_status !== 'pending' && turn_status !== 'in_progress') return undefined
  return openTranslated(request, 'a2a', 'generateSessionReply', {
    params: { session_id: session_id as string },
    body: { stream: true },
    client: { attach: { generation_id: turn_id as string, after: 0 } },
  })
}

/** Raises the error of a stream that ended because its caller lost the permission; a failed turn ends with its task. */
function raiseLostPermission({ code, message, meta }: Record<string, any>): void {
  if (isErrorCode(code) && ['UNAUTHORIZED', 'FORBIDDEN'].includes(code)) throw new AppError(code, { message, meta })
}
