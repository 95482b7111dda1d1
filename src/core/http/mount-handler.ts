import type { Response } from 'express'
import type { Services } from '../base/services.ts'
import type { Caller } from '../iam/caller.ts'
import { requireStorableParams } from '../invoke/resolve.ts'
import { inCellOf } from '../services/cell.ts'
import { anonymousBodyError, jsonReader } from './body.ts'
import type { Mount, MountExchange } from './mounts.ts'
import { type CallerResolver, requestFacts, type Wire } from './requests.ts'
import type { ResponseWriter } from './responses.ts'
import { limitBodyTime } from './server.ts'

/** What the handlers of an application have in common. */
export type HttpParts = { services: Services; callers: CallerResolver; responses: ResponseWriter }

/** Returns the handler of a mount. */
export function mountHandler(
  { services, callers, responses }: HttpParts,
  { path, endUsers, bodyLimit, serve }: Mount,
): (req: Wire, res: Response) => Promise<void> {
  const { config } = services
  const read = jsonReader(bodyLimit ?? config.HTTP_JSON_LIMIT_BYTES)
  return async (req, res) => {
    let caller: Caller | undefined
    const noted: Record<string, unknown> = {}
    const request = requestFacts(services, req, res)
    const exchange: MountExchange = {
      req,
      res,
      request,
      noted,
      async identify() {
        const resolved = await callers.resolve(req)
        const identified = resolved?.end_user && !endUsers ? null : resolved
        caller = identified ?? undefined
        if (caller) await request.count?.in(caller, caller.project_id)
        return identified
      },
      async readJson() {
        if (!caller) throw anonymousBodyError(req)
        const totalMs = config.HTTP_BODY_TIMEOUT_MS
        limitBodyTime(req, { totalMs, idleMs: Math.min(config.HTTP_IDLE_TIMEOUT_MS, totalMs) })
        await read(req, res)
        return req.body === '' ? undefined : req.body
      },
      end: (status, text) => responses.end(req, res, status, text, { route: path, caller, noted }),
      stream: (status, contentType, stream) =>
        responses.stream(req, res, { status, contentType, stream }, { route: path, caller, noted }),
    }
    try {
      requireStorableParams(req.params)
      const placed = await callers.servicesOf(req)
      await inCellOf(placed, () => serve(placed, exchange))
    } catch (error) {
      responses.error(error, req, res, { route: path, caller })
    }
  }
}
