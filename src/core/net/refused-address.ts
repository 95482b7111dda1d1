import type { Problem } from '../api/errors.ts'
import type { Services } from '../process/services.ts'

/**
 * Returns a problem if the egress rule blocks an address in a request body. An unchanged stored address is not checked
 * again: the deployment may have allowed it then, and a call would report it.
 * @param path of the field in the body
 */
export function addressProblems(
  { egress }: Pick<Services, 'egress'>,
  path: string,
  url: string | null | undefined,
  stored?: string | null,
): Problem[] {
  const refused = url == null || url === stored ? null : egress.refusal(url)
  if (refused === null) return []
  return [{ code: 'ADDRESS_BLOCKED', path, message: `${refused}; the operator can allow it in EGRESS_ALLOW_HOSTS` }]
}
