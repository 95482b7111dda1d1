import type { AdapterPayload } from 'oidc-provider'
import type { Services } from '../../core/process/services.ts'
import { sha256Of } from '../../core/secrets/digest.ts'
import { OBJECT_SEAL } from './model.ts'

/** What objects hold is sealed for their row: identifiers of others are among it, which a dump must not give away. */

type Box = Pick<Services, 'secrets'>

const sealedFor = (model: string, hash: string) => ({
  kind: OBJECT_SEAL,
  id: `${model}:${hash}`,
  project_id: null,
})

export const sealObject = ({ secrets }: Box, model: string, id: string, payload: AdapterPayload): string =>
  secrets.seal(JSON.stringify(payload), sealedFor(model, sha256Of(id).toString('hex')))

/** What an object holds; null where it cannot be opened, which makes it unknown. */
export function openObject({ secrets }: Box, model: string, hash: string, sealed: string): AdapterPayload | null {
  const opened = secrets.open(sealed, sealedFor(model, hash))
  return opened.ok ? JSON.parse(opened.value) : null
}
