import { AppError } from '../base/errors.ts'
import { parseExactJson } from '../base/exact-json.ts'
import type { Services } from '../base/services.ts'
import type { SealedFor } from './secretbox.ts'

/** JSON values sealed for their row. */

type Box = Pick<Services, 'secrets'>

/** Seals a JSON value for its row. */
export const sealJson = ({ secrets }: Box, value: unknown, row: SealedFor): string =>
  secrets.seal(JSON.stringify(value), row)

/** Opens a sealed JSON value; `what` names it in the error. Raises SECRET_NOT_DECRYPTABLE. */
export function openJson<T>({ secrets }: Box, sealed: string, row: SealedFor, what: string): T {
  const opened = secrets.open(sealed, row)
  if (!opened.ok) throw new AppError('SECRET_NOT_DECRYPTABLE', { message: `${what} cannot be decrypted` })
  return parseExactJson(opened.value)
}
