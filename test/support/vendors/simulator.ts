import type { Frame } from './frames.ts'
import type { Answer, CacheUse, Demand, Noise } from './plan.ts'
import type { Call, Rule } from './rules.ts'

/** An error as a vendor sends it. */
export type VendorError = { status: number; headers?: Record<string, string>; body: unknown }

export type Failure = {
  status: number
  message: string
  type?: string
  code?: string
  param?: string
  retry_after?: number | string
}

/** One wire format of one vendor: its refusals, and how it writes answers and errors. */
export type Simulator = {
  name: string
  rules: readonly Rule[]
  /** Returns model and streaming of a request, or null if it is no model call. */
  read(path: string, body: any): { model: string; stream: boolean } | null
  demand(body: any): Demand
  error(failure: Failure): VendorError
  /** The answer in one body. */
  whole(answer: Answer, call: Call): unknown
  /** The answer as the frames of a stream. */
  frames(answer: Answer, call: Call): Frame[]
  /** The frame of an error within a stream. */
  errorFrame(failure: Failure): Frame
  /** Encodes frames that are not server-sent events. */
  encode?(frame: Frame): Uint8Array
  /** Lines without meaning that streams of the vendor have. */
  noise?: readonly Noise[]
  callId(n: number): string
  /** Use of the prompt cache, for vendors whose requests mark what to cache. */
  cache?(call: Call): CacheUse
  /** Facts about an answer that later requests must agree with. */
  issue?(answer: Answer, call: Call): [id: string, fact: unknown][]
  /** Models of the vendor, as it lists them. */
  listing: unknown
  listingHeaders?: Record<string, string>
}

/** Unique IDs of requests, as vendors send them in a header. */
let requests = 0
export const requestId = (): string => `req_${String(++requests).padStart(8, '0')}`
