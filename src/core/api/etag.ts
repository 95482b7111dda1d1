import { createHash } from 'node:crypto'

/** Weak entity tag of a text. */
export const etagOf = (text: string): string => `W/"${createHash('sha1').update(text).digest('base64url')}"`

/** Whether an If-Match or If-None-Match header names a tag: `*`, or the tag somewhere in its list. */
export const etagMatches = (header: string, tag: string): boolean =>
  header.trim() === '*' || header.split(',').some(item => item.trim() === tag)
