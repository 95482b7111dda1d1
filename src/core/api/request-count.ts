import { extensionPoint } from '../base/declarations.ts'
import type { Services } from '../base/services.ts'
import type { Caller } from '../iam/caller.ts'
import { inCellOf } from '../services/cell.ts'

/** Counts a request of a project key, for quotas and usage. Raises QUOTA_EXCEEDED. */
export const requestCounting = extensionPoint<
  (services: Services, caller: Caller, projectId: string) => Promise<void> | void
>({
  name: 'request counting',
  folder: 'core/api',
  description: 'Counts a request of a project key, for quotas and usage',
})

/**
 * Counts a request of a key against the quotas and usage of one project, once. A key of a project is counted when the
 * request identifies its caller; another key when the request finds its project. Requests of other credentials, and calls
 * without a request, are not counted.
 */
export class RequestCount {
  readonly #services: Services
  #isCounted = false

  constructor(services: Services) {
    this.#services = services
  }

  /**
   * Counts the request unless it is counted. `projectId`: the project of the request, null while it is not known.
   * @throws QUOTA_EXCEEDED
   */
  async in(caller: Caller, projectId: string | null): Promise<void> {
    if (this.#isCounted || caller.credential.type !== 'api_key' || projectId === null) return
    this.#isCounted = true
    const services = this.#services.cells?.ofProject(projectId) ?? this.#services
    await inCellOf(services, async () => {
      for (const count of requestCounting.all()) await count(services, caller, projectId)
    })
  }
}
