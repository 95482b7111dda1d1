import type { Problem } from '../base/errors.ts'
import type { Services } from '../base/services.ts'

/**
 * Returns a problem if the egress rule blocks an address, judged without a lookup: an IP address or localhost. Writes
 * return it as a warning, because the rule and the addresses of names may change before the address is called.
 * @param path of the field in the body
 */
export function addressProblems(
  { egress }: Pick<Services, 'egress'>,
  path: string,
  url: string | null | undefined,
): Problem[] {
  // A template may have an expression instead.
  const refused = typeof url === 'string' ? egress.refusal(url) : null
  if (refused === null) return []
  return [{ code: 'ADDRESS_BLOCKED', path, message: `${refused}; the operator can allow it in EGRESS_ALLOW_HOSTS` }]
}
