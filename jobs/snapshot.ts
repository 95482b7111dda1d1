import type { Services } from '../src/core/operation.ts'
import type { Concern } from './concern.ts'

export const snapshotActors = (_services: Services): Concern => ({ actors: [], ticks: [] })
