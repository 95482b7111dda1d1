import { Box, Group, Stack, Table, Text, VisuallyHidden } from '@mantine/core'
import { useCallback, useMemo, useRef, useState } from 'react'
import UPlot from 'uplot'
import * as strings from '#strings.ts'
import { dayText, type PlotTheme, usePlot, useShade } from './plot.ts'
import { visible } from './text.tsx'

export type ChartSeries = { name: string; values: number[] }

const HEIGHT = 260
const HALF_DAY_SECONDS = 43_200
const COLORS = ['indigo', 'teal', 'orange', 'grape', 'cyan', 'gray'] as const

/** Sums of the series up to each one. */
function stacked(series: ChartSeries[]): number[][] {
  const sums: number[][] = []
  for (const { values } of series) {
    const below = sums.at(-1)
    sums.push(values.map((value, index) => value + (below?.[index] ?? 0)))
  }
  return sums
}

/** Stacked bars by day, with the numbers of the day under the pointer, and a table of all for screen readers. */
export default function Chart({
  label,
  days,
  series,
  format,
}: {
  label: string
  /** Starts of the days, in seconds. */
  days: number[]
  series: ChartSeries[]
  format: (value: number) => string
}) {
  const ref = useRef<HTMLDivElement>(null)
  const shade = useShade()
  const [pointed, setPointed] = useState<number | null>(null)
  const sums = useMemo(() => stacked(series).reverse(), [series])
  const data = useMemo(() => [days, ...sums] as UPlot.AlignedData, [days, sums])
  const options = useCallback(
    ({ color, shade, axis }: PlotTheme): Omit<UPlot.Options, 'width' | 'height'> => ({
      padding: [12, 24, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      tzDate: seconds => UPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC'),
      scales: {
        x: { range: (_, min, max) => [min - HALF_DAY_SECONDS, max + HALF_DAY_SECONDS] },
        y: { range: (_, _min, max) => [0, max > 0 ? max * 1.1 : 1] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 60,
          incrs: [1, 2, 7, 14].map(count => count * 2 * HALF_DAY_SECONDS),
          values: (_, splits) => splits.map(dayText),
        },
        { ...axis, size: 72, values: (_, splits) => splits.map(format) },
      ],
      series: [
        {},
        // The sum of all is drawn first: each bar covers the part of the one before that is not its own.
        ...sums.map((_, index) => ({
          paths: UPlot.paths.bars?.({ size: [0.72, 48], radius: 0.1 }),
          points: { show: false },
          fill: color(`--mantine-color-${COLORS[(sums.length - 1 - index) % COLORS.length]}-${shade}`),
        })),
      ],
      hooks: { setCursor: [({ cursor }) => setPointed(cursor.idx ?? null)] },
    }),
    [sums, format],
  )
  usePlot(ref, HEIGHT, data, options)
  const shownValue = ({ values }: ChartSeries) =>
    format(pointed === null ? values.reduce((sum, value) => sum + value, 0) : (values[pointed] ?? 0))
  return (
    <Stack gap="xs">
      <Box ref={ref} mih={HEIGHT} aria-hidden />
      <Group gap="lg" aria-hidden>
        <Text size="sm" fw={600}>
          {pointed === null ? strings.usage.total : dayText(days[pointed])}
        </Text>
        {series.map((each, index) => (
          <Group gap={6} key={each.name}>
            <Box w={10} h={10} bg={`${COLORS[index % COLORS.length]}.${shade}`} style={{ borderRadius: 3 }} />
            <Text size="sm">
              {visible(each.name)} {shownValue(each)}
            </Text>
          </Group>
        ))}
      </Group>
      <VisuallyHidden>
        <Table aria-label={label}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>{strings.usage.day}</Table.Th>
              {series.map(({ name }) => (
                <Table.Th key={name}>{visible(name)}</Table.Th>
              ))}
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {days.map((day, index) => (
              <Table.Tr key={day}>
                <Table.Th>{dayText(day)}</Table.Th>
                {series.map(({ name, values }) => (
                  <Table.Td key={name}>{format(values[index])}</Table.Td>
                ))}
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </VisuallyHidden>
    </Stack>
  )
}
