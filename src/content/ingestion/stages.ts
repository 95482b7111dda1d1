import { type Span, type SpanStart, traced } from '#core/base/telemetry.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'

/** Stages of an ingestion, in their order; `convert` in place of `read` where a converter reads the file. */
export type Stage = 'read' | 'convert' | 'cut' | 'embed' | 'write'

/** What a stage counts. */
type Counts = { pages?: number | null; chunks?: number; bytes?: number | null }

const stageSpan = (stage: Stage): SpanStart => ({
  name: `ingest ${stage}`,
  requests: stage === 'convert',
  attributes: { [MUSTER.stage]: stage },
})

/** Runs a stage within its span; `note` adds its counts. */
export const inStage = <T>(stage: Stage, work: (note: (counts: Counts) => void) => Promise<T>): Promise<T> =>
  traced(stageSpan, stage, span => work(counts => noteCounts(span, counts)))

const noteCounts = (span: Span | null, { pages, chunks, bytes }: Counts): void =>
  span?.set({ [MUSTER.pages]: pages, [MUSTER.chunks]: chunks, [MUSTER.bytes]: bytes })
