/** Whether two versions differ in more than the patch. */
export const isOtherMinor = (a: string, b: string): boolean =>
  a.split('.').slice(0, 2).join('.') !== b.split('.').slice(0, 2).join('.')
