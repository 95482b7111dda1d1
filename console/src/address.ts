import { useParams } from '@tanstack/react-router'

const useAnyIds = () => useParams({ strict: false })

/** The IDs of the address, by the names of the routes; a view reads the IDs of its route. */
export const useIds = () => useAnyIds() as Required<ReturnType<typeof useAnyIds>>
