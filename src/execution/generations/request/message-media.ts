import { extractPdf, extractText } from '#content/extract/extract.ts'
import { type MediaInput, mediaInput, PDF, raiseNotAccepted } from '#content/files/media.ts'
import { fileNote, GONE_NOTE } from '#content/files/media-notes.ts'
import { essenceOf } from '#content/files/media-type.ts'
import type { FileRow } from '#content/files/model.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { type MediaRules, mediaRules } from '#execution/agents/media.ts'
import type { LoadedRoute } from '#execution/model-routes/store.ts'
import type { ModelInput, ProviderRow } from '#execution/providers/model.ts'
import { modelInputs } from '#execution/providers/model-inputs.ts'
import type { AttachedFile, FilePart, MessageMedia, ModelMessage } from '#execution/providers/model-messages.ts'
import { escapeClosingTag, referenceBlock } from './reference-block.ts'

/** A file of a conversation message or of a client's request, by ID or with its content. */
export type MediaPart = (FilePart | AttachedFile) & { media: MessageMedia }

/** The file of a part. `id` is unique among the files of a turn. */
export type MediaFile = Pick<FileRow, 'id' | 'project_id' | 'filename' | 'content_type' | 'size'> & {
  pieces(): AsyncIterable<Uint8Array>
}

/** Inputs of a model; null if unknown. */
type Inputs = ReadonlySet<ModelInput> | null

/** How a turn handles the files of conversation messages. */
export type MediaHandling = {
  rules: MediaRules
  /** Inputs of the models that may be called. */
  models: readonly Inputs[]
  /** Returns a description of a file, or null if there is none. Requires the fallback `describe`. */
  describe?: (target: DescribedFile, content: AttachedFile) => Promise<string | null>
}

/** A file to describe, and the message that keeps the description. */
export type DescribedFile = { file_id: string; message_id: string | null }

/** Handling by a caller without an agent. */
export const handlingOf = (models: readonly Inputs[]): MediaHandling => ({ rules: mediaRules(null), models })

/** Returns the inputs of the models that may be called: of the provider's model, or of all targets of the route. */
export function calledModels(
  { provider, route }: { provider: ProviderRow | null; route: LoadedRoute | null },
  model: string | null | undefined,
): Inputs[] {
  if (provider) return [modelInputs(provider, model ?? provider.default_model)]
  return (route?.route.targets ?? []).map(target => {
    const served = route?.providers.find(({ id }) => id === target.ai_provider_id)
    return served ? modelInputs(served, target.model) : null
  })
}

const isMedia = (part: { type: string; media?: MessageMedia }): part is MediaPart => part.media !== undefined

/**
 * Returns the parts whose files are sent, newest first: of the newest turns, as many as a turn may have. A turn
 * begins with a user message after a reply.
 */
export function currentMedia(messages: readonly ModelMessage[], rules: MediaRules): MediaPart[] {
  const current: MediaPart[] = []
  let turns = 0
  let after: ModelMessage['role'] = 'assistant'
  for (const { role, content } of messages.toReversed()) {
    if (role === 'user') {
      if (after !== 'user') turns += 1
      if (turns > rules.history_turns) break
      if (typeof content !== 'string') current.push(...content.filter(isMedia).toReversed())
    }
    after = role
  }
  return current.slice(0, rules.max_parts_per_turn)
}

/** Longest extracted text and longest description, in characters. */
const MAX_EXTRACTED = 32_000
export const MAX_DESCRIPTION = 4000

/** Returns a note of a file. */
export const noteOf = ({ media }: Pick<MediaPart, 'media'>, file: Omit<MediaFile, 'pieces'> | undefined): string =>
  file ? fileNote(file, media.alt) : GONE_NOTE

/** Returns text from a file or about it as reference material, with the note of the file. */
const fenced = (part: MediaPart, file: MediaFile, text: string): string =>
  referenceBlock([escapeClosingTag(`${noteOf(part, file)}\n${text}`)])

/** Returns the text of a file, at most 32,000 characters; a note if it cannot be read. */
async function extractedText(
  services: Services,
  part: MediaPart,
  file: MediaFile,
  signal: AbortSignal,
): Promise<string> {
  const { config } = services
  const type = essenceOf(file.content_type ?? '')
  const extracted =
    type === PDF
      ? await extractPdf(async () => ({ size: file.size ?? 0, pieces: file.pieces() }), config, {
          project: file.project_id,
          signal,
        })
      : type.startsWith('text/')
        ? await extractText(() => file.pieces(), file.content_type as string, config)
        : null
  const text = extracted?.ok ? extracted.pages.map(page => page.text).join('\n\n') : ''
  return text === '' ? noteOf(part, file) : fenced(part, file, truncateChars(text, MAX_EXTRACTED))
}

/** Returns the text that a model gets in place of a file. @throws MEDIA_NOT_ACCEPTED, the reason of the signal */
export async function fallbackText(
  services: Services,
  handling: MediaHandling,
  { part, file, attached }: { part: MediaPart; file: MediaFile; attached?: AttachedFile },
  signal: AbortSignal,
): Promise<string> {
  const { rules, describe } = handling
  if (mediaInput(file.content_type) === 'text') return extractedText(services, part, file, signal)
  switch (rules.fallback) {
    case 'note':
      return noteOf(part, file)
    case 'extract':
      return extractedText(services, part, file, signal)
    case 'describe': {
      const target = { file_id: file.id, message_id: part.media.message_id }
      const description = part.media.description ?? (attached && (await describe?.(target, attached)))
      return description == null ? noteOf(part, file) : fenced(part, file, description)
    }
    case 'refuse': {
      const message = `The model does not accept files of type ${essenceOf(file.content_type ?? '')}`
      return raiseNotAccepted(file.id, { reason: 'model', message })
    }
  }
}

/** Whether the bytes of a file are needed: to send it to a model, or to describe it. */
export function needsBytes({ rules, models, describe }: MediaHandling, part: MediaPart, file: MediaFile): boolean {
  const input = mediaInput(file.content_type)
  if (input === null || input === 'text') return false
  return mayTake(models, input) || (rules.fallback === 'describe' && !!describe && part.media.description === null)
}

/** Whether some model that may be called takes an input, as far as is known. */
export const mayTake = (models: readonly Inputs[], input: MediaInput): boolean =>
  models.some(inputs => inputs === null || inputs.has(input))
