import type { Request, Response } from 'express'
import { etagMatches } from '../api/etag.ts'

/** Sets the entity tag of a response, and answers 304 if the request names the same tag; returns whether it did. */
export function answersNotModified(req: Request, res: Response, tag: string): boolean {
  res.setHeader('ETag', tag)
  const ifNoneMatch = req.headers['if-none-match']
  if (ifNoneMatch === undefined || !etagMatches(ifNoneMatch, tag)) return false
  res.status(304).end()
  return true
}
