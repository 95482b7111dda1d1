import { useNavigate, useSearch } from '@tanstack/react-router'

/** The filters of a view, which are the query of its address. */
export type Filters = Record<string, string | undefined>

/** Returns the filters of the view, and a function that changes some of them; another filter leads to the first page. */
export function useFilters(): { filters: Filters; setFilters: (change: Filters) => void } {
  const filters = useSearch({ strict: false }) as Filters
  const navigate = useNavigate()
  const setFilters = (change: Filters) => {
    const kept = Object.entries({ ...filters, page: undefined, ...change }).filter(([, value]) => value)
    void navigate({ to: '.', search: Object.fromEntries(kept), replace: true })
  }
  return { filters, setFilters }
}
