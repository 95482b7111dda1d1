import type {
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4StreamPart,
  SharedV4Warning,
} from '@ai-sdk/provider'
import { type AnswerEnd, type RawAnswer, rawAnswer } from './answer.ts'
import { BodyReader } from './body-facts.ts'
import type { CallProgress } from './call-progress.ts'
import { DroppedParts } from './dropped-parts.ts'
import { ResponseWatch, UnstreamedError } from './event-stream.ts'
import { StreamFailure } from './failure.ts'
import type { ModelRequest, VendorStep } from './model-messages.ts'
import type { ModelClient } from './models.ts'
import { sdkRequest } from './outgoing/sdk-request.ts'
import { type Reported, reportedUsage } from './reported-usage.ts'
import { ContentReader, MessageBounds } from './vendor-parts.ts'
import { unsupportedSettings } from './vendor-settings.ts'
import { WholeCharacters } from './whole-characters.ts'

/** Time limit for the silence of a response after its first byte. */
type IdleLimit = { ms: number; onIdle: () => void }

/**
 * Sends a request in the form that the vendor accepts, and returns the answer with the names of the request.
 * @param control.progress receives what arrives of the answer
 * @throws what the package or the vendor reports
 */
export async function callSdk(
  client: ModelClient,
  target: Pick<VendorStep, 'ai_provider_id' | 'model'>,
  request: ModelRequest,
  { progress, idle }: { progress: CallProgress; idle: IdleLimit },
): Promise<RawAnswer> {
  const { options, notes, restore } = sdkRequest(client, request, target)
  const isStreamed = request.stream !== false
  const watch = new ResponseWatch({ isStreamed, idle, body: BodyReader.of(client.type) })
  const dropped = DroppedParts.of(client.type, target.model, request, (request.vendor_tools?.length ?? 0) > 0)
  const reading: Reading = {
    watch,
    dropped,
    progress,
    shown: shownTo(request, progress),
    reports: end => ({ ...end, type: client.type, model: target.model, facts: watch.body?.facts ?? null }),
  }
  const vendor = client.model(target.model)
  const answer = isStreamed
    ? await readStream(vendor, options, reading).catch(error => {
        // Some servers answer a request for a stream with a whole answer.
        if (!(error instanceof UnstreamedError)) throw error
        return readAnswer(vendor, options, reading)
      })
    : await readAnswer(vendor, options, reading)
  const { notes: droppedNotes = [], ...added } = dropped?.addedTo(answer) ?? {}
  const unsupported = unsupportedSettings(client.type, request.vendor_settings)
  const all = [...notes, ...unsupported, ...(answer.notes ?? []), ...droppedNotes]
  return { ...answer, ...added, tool_calls: restore(answer.tool_calls), ...(all.length > 0 && { notes: all }) }
}

type Shown = Record<'text' | 'reasoning', WholeCharacters>

type Reading = {
  watch: ResponseWatch
  /** Reads what the package drops from the answer. */
  dropped: DroppedParts | null
  progress: CallProgress
  /** Passes texts on to the caller. */
  shown: Shown
  /** Adds the facts of the call to the end of an answer. */
  reports: (end: Omit<Reported, 'type' | 'model' | 'facts'>) => Reported
}

function shownTo({ onDelta, onReasoning }: ModelRequest, progress: CallProgress): Shown {
  const passing = (pass: ((text: string) => void) | undefined) =>
    new WholeCharacters(
      pass &&
        (text => {
          progress.markShown()
          pass(text)
        }),
    )
  return { text: passing(onDelta), reasoning: passing(onReasoning) }
}

function endShown({ text, reasoning }: Shown): void {
  reasoning.end()
  text.end()
}

async function readAnswer(
  vendor: LanguageModelV4,
  options: LanguageModelV4CallOptions,
  { watch, dropped, progress, shown, reports }: Reading,
): Promise<RawAnswer> {
  const { content: parts, warnings, response, ...end } = await watch.run(() => vendor.doGenerate(options))
  dropped?.read(response?.body)
  progress.nameResponse(response?.id)
  const content = [...parts, ...(dropped?.sources ?? [])]
  progress.countCalls(content.filter(({ type }) => type === 'tool-call').length)
  const answer = rawAnswer(
    content,
    end,
    warnings,
    reports(reportedEnd(end, [...content, ...(dropped?.searches ?? [])], response?.modelId)),
  )
  shown.reasoning.add(answer.reasoning ?? '')
  shown.text.add(answer.text)
  endShown(shown)
  return answer
}

async function readStream(
  vendor: LanguageModelV4,
  options: LanguageModelV4CallOptions,
  reading: Reading,
): Promise<RawAnswer> {
  const { stream, response } = await reading.watch.run(() =>
    vendor.doStream(reading.dropped ? { ...options, includeRawChunks: true } : options),
  )
  return readParts(stream, reading).catch(error => {
    throw new StreamFailure(error, response?.headers)
  })
}

/** @throws what the vendor sends in place of the rest of the answer */
async function readParts(
  stream: ReadableStream<LanguageModelV4StreamPart>,
  { watch, dropped, progress, shown, reports }: Reading,
): Promise<RawAnswer> {
  const content = new ContentReader()
  const bounds = new MessageBounds()
  let hasText = false
  let warnings: readonly SharedV4Warning[] = []
  let modelId: string | undefined
  for await (const part of stream) {
    progress.count(part)
    content.read(part)
    if (part.type === 'raw') dropped?.read(part.rawValue)
    else if (part.type === 'text-delta') {
      if (part.delta === '') continue
      shown.text.add(bounds.separator(hasText) + part.delta)
      hasText = true
    } else if (part.type === 'text-start') bounds.begin(part)
    else if (part.type === 'reasoning-delta') shown.reasoning.add(part.delta)
    else if (part.type === 'stream-start') warnings = part.warnings
    else if (part.type === 'response-metadata') {
      modelId = part.modelId ?? modelId
      progress.nameResponse(part.id)
    } else if (part.type === 'error') throw part.error
    else if (part.type === 'finish') {
      const parts = [...content.parts(), ...(dropped?.sources ?? [])]
      const reported = reports(reportedEnd(part, [...parts, ...(dropped?.searches ?? [])], modelId))
      progress.addUsage(reportedUsage(reported))
      // The packages end a stream that breaks off as if it were complete, but without a reason.
      if (part.finishReason.raw === undefined && !watch.hasEnded) break
      endShown(shown)
      return rawAnswer(parts, part, warnings, reported)
    }
  }
  throw new Error('the stream broke off')
}

const reportedEnd = (
  { usage, providerMetadata }: AnswerEnd,
  content: readonly LanguageModelV4Content[],
  modelId: string | undefined,
) => ({ usage, metadata: providerMetadata, content, modelId })
