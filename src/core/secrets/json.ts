import { AppError } from '../api/errors.ts'
import type { Services } from '../process/services.ts'
import type { SealedFor } from './secretbox.ts'

/** Values that rows keep sealed as JSON. */

type Box = Pick<Services, 'secrets'>

/** A value to be stored with its row. */
export const sealJson = ({ secrets }: Box, value: unknown, row: SealedFor): string =>
  secrets.seal(JSON.stringify(value), row)

/** The value that a row keeps; `what` it is, for the error. Raises SECRET_NOT_DECRYPTABLE. */
export function openJson<T>({ secrets }: Box, sealed: string, row: SealedFor, what: string): T {
  const opened = secrets.open(sealed, row)
  if (!opened.ok) throw new AppError('SECRET_NOT_DECRYPTABLE', { message: `${what} cannot be decrypted` })
  return JSON.parse(opened.value)
}
