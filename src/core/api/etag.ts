import { createHash } from 'node:crypto'

/** Returns the weak entity tag of a text. */
export const etagOf = (text: string | Buffer): string => `W/"${createHash('sha1').update(text).digest('base64url')}"`

/** Whether an If-Match or If-None-Match header is `*` or lists a tag. */
export const etagMatches = (header: string, tag: string): boolean =>
  header.trim() === '*' || header.split(',').some(item => item.trim() === tag)
