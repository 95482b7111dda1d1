import type { RecordedFailure } from '../base/errors.ts'

/** A stored event of a stream, with its data as JSON text. */
export type StreamFrame = { seq: number; event: string; data: string }

/** The wire format of the frames of a stream. */
export type FrameFormat = {
  /** A generator, because a stream ends it early when its client disconnects. */
  frame(frame: StreamFrame): Generator<string, void> | AsyncGenerator<string, void>
  /** Whether a frame ended the stream before its last frame. */
  ended?(): boolean
  /** The last message for a caller that has lost its permission. */
  refused?(refusal: RecordedFailure): string | Promise<string>
}
