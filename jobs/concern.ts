import type { Actor, Tick } from '../src/core/jobs/worker.ts'

/** What one concern contributes to a worker process. */
export type Concern = { actors: Actor[]; ticks: Tick[]; close?: () => Promise<void> }
