/** One measured number. `target` is the intended value; a miss is printed, never failed. */
export type Row = { what: string; value: number; unit: string; target?: string; note?: string }
