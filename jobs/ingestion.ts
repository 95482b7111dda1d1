import type { Services } from '../src/core/operation.ts'
import type { Concern } from './concern.ts'

/** Files that become documents, their vectors, and what is left behind in storage. */
export const ingestionActors = (_services: Services): Concern => ({ actors: [], ticks: [] })
