/** Headers of outgoing requests, as callers may set them. */

export const HEADER_NAME = /^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$/

/** Allowed characters of a header value. */
export const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

/** Headers that follow from the URL and the body. */
export const RESERVED_HEADERS: readonly string[] = [
  'host',
  'content-length',
  'transfer-encoding',
  'connection',
  'upgrade',
]
