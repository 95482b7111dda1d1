import { readFileSync } from 'node:fs'

/** The version of Muster, from package.json. */
export const release = (
  JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as { version: string }
).version

/** Returns the numbers of a version and the identifiers of its prerelease; its build does not count. */
function identifiersOf(version: string): [numbers: string[], prerelease: string[]] {
  const [, numbers, prerelease = ''] = /^([^-+]*)(?:-([^+]*))?/.exec(version) as RegExpExecArray
  return [numbers.split('.'), prerelease === '' ? [] : prerelease.split('.')]
}

/** Compares two identifiers: numbers by value and before names, names as text, a missing one first. */
function compareIdentifiers(one: string | undefined, other: string | undefined): number {
  if (one === undefined || other === undefined) return Number(one !== undefined) - Number(other !== undefined)
  const [isNumber, isOtherNumber] = [one, other].map(each => /^\d+$/.test(each))
  if (isNumber && isOtherNumber) return Number(one) - Number(other)
  if (isNumber !== isOtherNumber) return isNumber ? -1 : 1
  return one === other ? 0 : one < other ? -1 : 1
}

function compareLists(one: readonly string[], other: readonly string[]): number {
  const length = Math.max(one.length, other.length)
  const results = Array.from({ length }, (_, index) => compareIdentifiers(one[index], other[index]))
  return results.find(result => result !== 0) ?? 0
}

/** Compares two versions by their precedence in Semantic Versioning: a prerelease comes before its release. */
export function compareReleases(one: string, other: string): number {
  const [[numbers, prerelease], [otherNumbers, otherPrerelease]] = [one, other].map(identifiersOf)
  return (
    compareLists(numbers, otherNumbers) ||
    Number(prerelease.length === 0) - Number(otherPrerelease.length === 0) ||
    compareLists(prerelease, otherPrerelease)
  )
}
