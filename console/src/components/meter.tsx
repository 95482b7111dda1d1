import { Progress } from '@mantine/core'

/** Fraction from which a limit is near. */
const NEAR = 0.8

/** How much of a limit is used, as a bar; with its text. */
export function Meter({ used, limit, label }: { used: number; limit: number; label: string }) {
  const fraction = limit > 0 ? used / limit : 0
  return (
    <Progress.Root size="md" mt={4}>
      <Progress.Section
        value={Math.min(100, fraction * 100)}
        color={fraction >= 1 ? 'red' : fraction >= NEAR ? 'orange' : 'indigo'}
        aria-label={label}
      />
    </Progress.Root>
  )
}
