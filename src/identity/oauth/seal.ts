import type { AdapterPayload } from 'oidc-provider'
import type { Services } from '#core/base/services.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { OBJECT_SEAL } from './model.ts'

/**
 * Seals OAuth objects to their rows: they contain identifiers of other objects, which a database dump must not reveal.
 */

type SecretsService = Pick<Services, 'secrets'>

const sealedFor = (model: string, hash: string) => ({
  kind: OBJECT_SEAL,
  id: `${model}:${hash}`,
  project_id: null,
})

export const sealObject = ({ secrets }: SecretsService, model: string, id: string, payload: AdapterPayload): string =>
  secrets.seal(JSON.stringify(payload), sealedFor(model, sha256Of(id).toString('hex')))

/** Returns the payload of an object; null if it cannot be opened, which makes the object unknown. */
export function openObject(
  { secrets }: SecretsService,
  model: string,
  hash: string,
  sealed: string,
): AdapterPayload | null {
  const opened = secrets.open(sealed, sealedFor(model, hash))
  return opened.ok ? JSON.parse(opened.value) : null
}
