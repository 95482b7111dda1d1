import type { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { AppError, isErrorCode } from '../../core/api/errors.ts'
import { STEP_SETTLED } from '../../execution/generations/streams/frames.ts'
import { callOperation } from '../call.ts'
import { readFrames, type TurnFrame } from './frames.ts'
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

/**
 * Yields a task and then its changes until it rests; null for a comment that keeps the connection open. The task does not
 * depend on the stream.
 * @param first stream of the turn that the task waits for
 * @throws the refusal of a caller that has lost its permission
 */
export async function* taskUpdates(
  request: A2aRequest,
  task: TaskRow,
  first?: Readable,
): AsyncGenerator<StreamResponse | null> {
  yield { task: presentTask(task) }
  let current = task
  let stream = first
  const { closed } = request.exchange.request
  while (!isResting(current.state) && !closed.aborted) {
    const sent = new SentText()
    stream ??= await openStream(request, current)
    if (!stream) {
      await sleep(POLL_MS)
      yield null
    } else
      for await (const frame of readFrames(stream)) {
        if (frame === null) yield null
        else if (frame.event === 'delta') {
          const { content } = frame.data.choices[0].delta
          if (content !== '') yield sent.add(current, content)
        } else if (frame.event === STEP_SETTLED || frame.event === 'step_restarted') sent.endStep()
        else if (frame.event === 'run.updated' || frame.event === 'started') {
          const next = await readTask(request, current.id)
          if (isResting(next.state)) break
          if (next.state !== current.state) yield statusUpdate(next)
          current = next
        } else if (frame.event === 'error') raiseLostPermission(frame)
      }
    stream = undefined
    const next = await readTask(request, current.id)
    if (isResting(next.state)) yield* answerUpdates(next, sent.text)
    if (next.state !== current.state) yield statusUpdate(next)
    current = next
  }
}

/** Opens the stream of what a task waits for; undefined between a decision and the turn that follows it. */
async function openStream(request: A2aRequest, task: TaskRow): Promise<Readable | undefined> {
  if (task.run_id !== null) {
    const params = { orchestration_run_id: task.run_id }
    return (await callOperation(request, 'a2a', 'streamOrchestrationRun', { params })).stream
  }
  if (task.turn_status !== 'pending' && task.turn_status !== 'in_progress') return undefined
  const { stream } = await callOperation(request, 'a2a', 'generateSessionReply', {
    params: { session_id: task.session_id as string },
    body: { stream: true },
    client: { attach: { generation_id: task.turn_id as string, after: 0 } },
  })
  return stream
}

/** Raises the error of a stream that ended because its caller lost the permission; a failed turn ends with its task. */
function raiseLostPermission({ data: { code, message, meta } }: NonNullable<TurnFrame>): void {
  if (isErrorCode(code) && ['UNAUTHORIZED', 'FORBIDDEN'].includes(code)) throw new AppError(code, { message, meta })
}
