/** One measured number. `target` is what it is wanted to be; a miss is printed, never failed. */
export type Row = { what: string; value: number; unit: string; target?: string; note?: string }
