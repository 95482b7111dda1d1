import type { Caller } from '../../core/caller.ts'
import type { Services } from '../../core/operation.ts'

export type RequestQuotas = { count(caller: Caller, projectId: string): Promise<void>; close(): Promise<void> }

export const createRequestQuotas = (_services: Services): RequestQuotas => ({
  count: async () => {},
  close: async () => {},
})
