import type { Services } from '#core/base/services.ts'
import { IMAGE_TYPES, type MediaProblem, mediaProblem, raiseNotAccepted } from './media.ts'
import { essenceOf } from './media-type.ts'

const MAX_BYTES = 20 * 1024 * 1024
const TIMEOUT_MS = 10_000
const MAX_REDIRECTS = 3

export type FetchedImage = { bytes: Buffer; content_type: string }

/**
 * Fetches an image from a URL under the egress rule, with at most 20 MiB, 10 s and 3 redirects, and checks it like an
 * image of a message. Never call it for a URL from an end user.
 * @param request.project_id project on whose behalf the image is fetched
 * @throws MEDIA_NOT_ACCEPTED with `meta { file_id: null, reason }`; the reason of the signal
 */
export async function fetchImage(
  { egress }: Pick<Services, 'egress'>,
  { url, project_id, signal }: { url: string; project_id: string; signal?: AbortSignal },
): Promise<FetchedImage> {
  const outcome = await egress.request({
    url,
    method: 'GET',
    headers: { accept: IMAGE_TYPES.join(', ') },
    tenant: project_id,
    timeoutMs: TIMEOUT_MS,
    waitMs: TIMEOUT_MS,
    maxRedirects: MAX_REDIRECTS,
    redirectMode: 'standard',
    maxBytes: MAX_BYTES,
    signal,
  })
  signal?.throwIfAborted()
  const refuse = (reason: MediaProblem['reason'], message: string): never => raiseNotAccepted(null, { reason, message })
  if (outcome.kind === 'blocked') return refuse('url', `The URL of the image may not be fetched: ${outcome.reason}`)
  if (outcome.kind === 'failed') {
    if (outcome.reason === 'response_too_large') return refuse('size', `The image is larger than ${MAX_BYTES} bytes`)
    return refuse('url', `The image cannot be fetched: ${outcome.reason}`)
  }
  if (outcome.status !== 200) return refuse('url', `The URL of the image responded with ${outcome.status}`)
  const content_type = essenceOf(outcome.headers['content-type'] ?? '')
  if (!IMAGE_TYPES.includes(content_type))
    return refuse('type', `The URL does not respond with an image of the types ${IMAGE_TYPES.join(', ')}`)
  const problem = await mediaProblem(content_type, [outcome.body])
  if (problem) return raiseNotAccepted(null, problem)
  return { bytes: outcome.body, content_type }
}
