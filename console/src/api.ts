import { notifications } from '@mantine/notifications'
import { Client, MusterError, NoAnswer, parseExactJson } from '@muster/client'
import { MutationCache, QueryCache, QueryClient } from '@tanstack/react-query'
import { visible } from './components/untrusted.ts'
import { accessToken, isSignedOut, replaceTokens, signOut } from './session/tokens.ts'
import * as strings from './strings.ts'

/** The client of all requests, with the tokens of the user. */
export const api = new Client({ baseUrl: location.origin, token: accessToken, parseJson: parseExactJson })

/** The client of requests before anybody is signed in. */
export const anonymous = new Client({ baseUrl: location.origin })

/** Reads again with other tokens where the service refused them, and signs out on an error that no refresh cures. */
async function checkSignIn(error: unknown): Promise<void> {
  if (isSignedOut(error)) await signOut('expired')
  else if (error instanceof MusterError && error.status === 401 && (await replaceTokens()))
    await queries.invalidateQueries()
}

type Warning = { code: string; path: string; message: string }

/** Shows the warnings in the answer of a write, which the record itself does not have. */
function showWarnings(answer: unknown): void {
  const { id, warnings = [] } = (answer ?? {}) as { id?: string; warnings?: readonly Warning[] }
  if (id === undefined) return
  for (const { path, message } of warnings)
    notifications.show({
      title: strings.saveWarning,
      message: visible(`${path}: ${message}`),
      color: 'yellow',
      autoClose: false,
    })
}

/** The only cache of answers. */
export const queries = new QueryClient({
  queryCache: new QueryCache({ onError: error => void checkSignIn(error) }),
  mutationCache: new MutationCache({ onSuccess: showWarnings }),
  defaultOptions: {
    queries: { retry: false, staleTime: 2000, gcTime: 5 * 60_000, refetchOnWindowFocus: true },
    // Requests and answers may contain secrets: they are forgotten with their form.
    mutations: { onError: error => void checkSignIn(error), gcTime: 0 },
  },
})

/** Interval of views that are polled, unless they need another. */
export const POLL_MS = 5000
/** Interval while the work that a view shows is running. */
export const BUSY_MS = 2000

/** Constant in a tab: an interval that differs between two renderings begins again with each. */
const JITTER = 1 + Math.random() * 0.2

/** Interval of a list that is polled while its tab is visible, with jitter so that tabs do not send requests together. */
export const every =
  (ms: number) =>
  (query: { state: { error: Error | null; fetchFailureCount: number; errorUpdateCount: number } }): number => {
    const { error, errorUpdateCount } = query.state
    const base = error ? Math.min(60_000, ms * 2 ** Math.min(errorUpdateCount, 6)) : ms
    const retryAfter = error instanceof MusterError ? (error.retryAfter ?? 0) * 1000 : 0
    return Math.max(base * JITTER, retryAfter)
  }

/** Fields of an error that a person can use. */
type Failure = {
  message: string
  hint?: string
  code?: string
  requestId?: string | null
  status?: number
  docsUrl?: string
  /** Problems by field. */
  problems?: { path: string; message: string }[]
}

/** Returns the fields of an error. */
export function failureOf(error: unknown): Failure {
  if (error instanceof MusterError) {
    const { message, hint, code, requestId, status, docsUrl } = error
    const { problems } = (error.meta ?? {}) as { problems?: Failure['problems'] }
    return { message, hint, code, requestId, status, docsUrl, problems }
  }
  if (error instanceof NoAnswer) return { message: error.message, status: error.status ?? undefined }
  return { message: error instanceof Error ? error.message : String(error) }
}
