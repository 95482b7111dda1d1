/** Returns the version of the service from the start of its description; null if it is no description of a service. */
export const describedVersion = (description: string): string | null =>
  /"title":\s*"Muster",\s*"version":\s*"([^"]*)"/.exec(description)?.[1] ?? null

/** Whether two versions differ in more than the patch. */
export const isOtherMinor = (a: string, b: string): boolean =>
  a.split('.').slice(0, 2).join('.') !== b.split('.').slice(0, 2).join('.')
